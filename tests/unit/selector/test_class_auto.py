"""``class=auto`` in a round: what the planner gets, the ledger keeps, and ``explain`` says."""

import pytest
from commands import gpu_aware
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.classes.store import SavedClass, given_classes, put_saved_class
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Decision, Ledger, RoundRecord

BIG = {"tres_per_node": "gres/gpu:4", "admin_comment": "gpuaware/1;tn=gres/gpu:4;mc=1"}


class ClassBench:
    def __init__(self, slurm: SlurmFolder) -> None:
        self.now = 1_790_000_000.0
        self.slurm = slurm
        self.writer = LedgerWriter(slurm.store, clock=lambda: self.now)
        self.rounds = Rounds(
            slurm.client(),
            Config(),
            self.writer,
            gate_held_until=lambda: self.now + 60.0,
            clock=lambda: self.now,
            timer=lambda: self.now,
        )
        self.rounds.load()

    def run(self) -> None:
        self.now += 10.0
        self.waiting = self.rounds.run().waiting

    def decision(self, job_id: str) -> Decision:
        with open_store(self.slurm.store, readonly=True) as store:
            (entry,) = Ledger(store).decisions(job_id)
        return entry


def test_a_class_that_was_given_once_holds_after_a_restart(slurm: SlurmFolder) -> None:
    slurm.write([parked(comment="class=A", name="train")], ["n1", "n2"])
    ClassBench(slurm).run()
    slurm.write(
        [
            parked("8", comment="class=auto", name="train"),
            parked("9", comment="class=auto", name="train", user_name="mallory"),
        ],
        ["n1", "n2"],
    )
    later = ClassBench(slurm)
    later.run()
    own, other = later.decision("8"), later.decision("9")
    assert (own.asked["class"], own.asked["class_from"]) == ("A", "name")
    assert own.why["class_from"] == "A, as the user's job 7 of the same name"
    assert (other.asked["class"], other.asked["class_from"]) == ("B", "nothing")
    # What was found for one job is no word of the user for the next one.
    with open_store(slurm.store, readonly=True) as store:
        assert [row.job_id for row in given_classes(store, 99)] == ["7"]


def test_a_job_in_the_queue_tells_the_class_of_a_later_one_only(slurm: SlurmFolder) -> None:
    slurm.write(
        [
            parked("6", comment="class=auto", name="train", priority=9),
            parked("7", comment="class=C", name="train", priority=1),
            parked("8", comment="class=auto", name="train", priority=9),
        ],
        ["n1", "n2"],
    )
    bench = ClassBench(slurm)
    bench.run()
    earlier = bench.decision("6")
    assert (earlier.asked["class"], earlier.asked["class_from"]) == ("B", "nothing")
    assert bench.decision("8").asked["class"] == "C"
    assert bench.decision("7").asked["class_from"] == "given"
    assert "class_from" not in bench.decision("7").why


def test_a_comment_that_is_changed_while_the_job_waits_counts_anew(slurm: SlurmFolder) -> None:
    waits = parked("8", comment="class=C", name="train", **BIG)
    slurm.write([parked("6"), waits], ["n1"])
    bench = ClassBench(slurm)
    bench.run()
    with slurm.state() as state:
        next(job for job in state["jobs"] if job["job_id"] == 8)["comment"] = "class=A"
        state["jobs"].append(parked("9", comment="class=auto", name="train", priority=9))
    bench.run()
    assert bench.decision("9").asked["class"] == "A"


def test_a_class_that_was_saved_is_read_while_the_selector_runs(slurm: SlurmFolder) -> None:
    slurm.write([parked("7", comment="class=auto", name="cfd")], ["n1", "n2"])
    bench = ClassBench(slurm)
    bench.run()
    assert bench.decision("7").asked["class_from"] == "nothing"
    user = slurm.client().jobs()[0].user
    with open_store(slurm.store) as store:
        put_saved_class(store, SavedClass(user, "cfd", "C", bench.now))
    with slurm.state() as state:
        state["jobs"].append(parked("8", comment="class=auto", name="cfd"))
    bench.run()
    found = bench.decision("8")
    assert (found.asked["class"], found.asked["class_from"]) == ("C", "name")
    assert found.why["class_from"] == "C, stored for the user's jobs of this name"


def test_a_store_that_cannot_be_read_leaves_the_sites_default(slurm: SlurmFolder) -> None:
    slurm.store.write_bytes(b"no store")
    slurm.write([parked(comment="class=auto", name="train")], ["n1"])
    bench = ClassBench(slurm)
    bench.run()
    assert slurm.jobs["7"]["state"] == "RUNNING"


def test_explain_says_which_class_and_why(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(slurm.config))
    slurm.serve(monkeypatch)
    slurm.write(
        [
            parked("6", comment="class=A", name="train", priority=9),
            parked("7", comment="class=auto", name="train", priority=8),
            parked("8", comment="class=auto", name="train", priority=7, **BIG),
        ],
        ["n1"],
    )
    bench = ClassBench(slurm)
    bench.run()
    bench.writer.round(RoundRecord(bench.now, 1.0, 3, 2, 1, detail={"waiting": bench.waiting}))
    bench.writer.close()

    def explained(job_id: str) -> str:
        return " ".join(gpu_aware("explain", job_id).stdout.split())

    assert "class A, as the user's job 6 of the same name" in explained("7")
    assert "Its class is A, as the user's job 6 of the same name." in explained("8")
    assert "as the user's job" not in explained("6")
