"""``class=auto`` in a round: what the planner gets, the ledger keeps, and ``explain`` says."""

from typing import Any

from commands import words
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.features.classes.store import SavedClass, given_classes, put_saved_class
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import RoundRecord


def given(slurm: SlurmFolder, job_id: str) -> tuple[str, str, str | None]:
    """The class of a job, where it is from, and how that is told."""
    (entry,) = slurm.ledger(job_id)
    return entry.asked["class"], entry.asked["class_from"], entry.why.get("class_from")


def loaded_bench(slurm: SlurmFolder, *jobs: dict[str, Any], nodes: int = 2) -> RoundsBench:
    """A selector that knows the ledger, after a round."""
    slurm.write(list(jobs), ["n1", "n2"][:nodes])
    bench = RoundsBench(slurm)
    bench.rounds.load()
    bench.run()
    return bench


AUTO = {"comment": "class=auto", "name": "train"}


def test_a_class_that_was_given_once_holds_after_a_restart(slurm: SlurmFolder) -> None:
    loaded_bench(slurm, parked(comment="class=A", name="train"))
    loaded_bench(slurm, parked("8", **AUTO), parked("9", **AUTO, user_name="mallory"))
    assert given(slurm, "8") == ("A", "name", "A, as the user's job 7 of the same name")
    assert given(slurm, "9")[:2] == ("B", "nothing")
    # What was found for one job is no word of the user for the next one.
    with open_store(slurm.store, readonly=True) as store:
        assert [row.job_id for row in given_classes(store, 99)] == ["7"]


def test_a_job_in_the_queue_tells_the_class_of_a_later_one_only(slurm: SlurmFolder) -> None:
    own = parked("7", comment="class=C", name="train", priority=1)
    loaded_bench(slurm, parked("6", **AUTO, priority=9), own, parked("8", **AUTO, priority=9))
    assert given(slurm, "6")[:2] == ("B", "nothing")
    assert given(slurm, "8")[0] == "C"
    assert given(slurm, "7") == ("C", "given", None)


def test_a_comment_that_is_changed_while_the_job_waits_counts_anew(slurm: SlurmFolder) -> None:
    waits = parked("8", 4, comment="class=C", name="train")
    bench = loaded_bench(slurm, parked("6"), waits, nodes=1)
    slurm.change("8", comment="class=A")
    slurm.add(parked("9", **AUTO, priority=9))
    bench.run(10.0)
    assert given(slurm, "9")[0] == "A"


def test_a_class_that_was_saved_is_read_while_the_selector_runs(slurm: SlurmFolder) -> None:
    bench = loaded_bench(slurm, parked("7", **AUTO))
    assert given(slurm, "7")[1] == "nothing"
    with open_store(slurm.store) as store:
        put_saved_class(store, SavedClass(slurm.client().jobs()[0].user, "train", "C", bench.wall))
    slurm.add(parked("8", **AUTO))
    bench.run(10.0)
    assert given(slurm, "8") == ("C", "name", "C, stored for the user's jobs of this name")


def test_a_store_that_cannot_be_read_leaves_the_sites_default(slurm: SlurmFolder) -> None:
    slurm.store.write_bytes(b"no store")
    loaded_bench(slurm, parked(**AUTO))
    assert slurm.jobs["7"]["state"] == "RUNNING"


def test_explain_says_which_class_and_why(slurm: SlurmFolder) -> None:
    own = parked("6", comment="class=A", name="train", priority=9)
    auto = parked("7", **AUTO, priority=8), parked("8", 4, **AUTO, priority=7)
    bench = loaded_bench(slurm, own, *auto, nodes=1)
    waiting = {"waiting": bench.run().waiting}
    bench.ledger.round(RoundRecord(bench.wall, 1.0, 3, 2, 1, detail=waiting))
    bench.ledger.close()
    told = {job_id: words("explain", job_id, config=slurm.config) for job_id in ("6", "7", "8")}
    assert "class A, as the user's job 6 of the same name" in told["7"]
    assert "Its class is A, as the user's job 6 of the same name." in told["8"]
    assert "as the user's job" not in told["6"]
