"""Order of the queue after a requeue, which is a new submission for Slurm."""

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked
from store_samples import decision

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.features.queue_order.live import FirstSubmissions
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.planning.record import read_round
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

ORDER = '[queue]\norder = "expected"\nrun_time_weight = 100.0\npassed_s = 3600.0\n'
WHOLE = {"tres_per_node": "gres/gpu:4", "admin_comment": "gpuaware/1;tn=gres/gpu:4;mc=1"}


@pytest.mark.parametrize(
    ("user", "first_s", "placed"),
    [("same", 4000, "7"), ("same", 3000, "8"), ("another", 4000, "8")],
)
def test_a_requeue_begins_no_new_time_in_which_jobs_pass(
    slurm: SlurmFolder, user: str, first_s: int, placed: str
) -> None:
    """Job 7 was requeued a minute ago; the shorter job 8 passes it within the bound only."""
    slurm.config.write_text(slurm.config.read_text() + ORDER)
    bench = RoundsBench(slurm, load_config(slurm.config))
    long = parked(
        "7", time_limit=600, restart_cnt=1, submit_time=int(bench.wall) - 60, priority=9, **WHOLE
    )
    short = parked("8", time_limit=10, submit_time=int(bench.wall) - 30, priority=8, **WHOLE)
    slurm.write([long, short], ["n1"])
    (owner,) = {job.user for job in slurm.client().jobs()}
    with open_store(slurm.store) as store:
        at = {"submitted_at": bench.wall - first_s, "decided_at": bench.wall - first_s + 1}
        name = owner if user == "same" else user
        Ledger(store).add_decision(decision("7", user=name, state="waiting", **at))
    outcome = bench.rounds.run()
    assert outcome.placed == [placed]
    assert outcome.planned is not None
    queue = read_round(outcome.planned(), FEATURES).asked.queue
    since = {one.job_id: bench.wall - one.waits_since_s for one in queue}
    assert since == {"7": first_s if user == "same" else 60, "8": 30}


@pytest.mark.parametrize(
    ("since_s", "placed"), [(4000, "7"), (3000, "8")], ids=["at its bound", "within it"]
)
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_wait_counts_from_when_the_job_became_eligible(
    slurm: SlurmFolder, since_s: int, placed: str, restarts: int
) -> None:
    """Job 7 was submitted a day before; its begin time, dependency or hold ended ``since_s`` ago.

    After a requeue a minute ago, the ledger knows when.
    """
    slurm.config.write_text(slurm.config.read_text() + ORDER)
    bench = RoundsBench(slurm, load_config(slurm.config))
    submitted = 60 if restarts else 90_000
    accrued = 60 if restarts else since_s
    times = {"submit_time": int(bench.wall) - submitted, "accrue_time": int(bench.wall) - accrued}
    long = parked("7", time_limit=600, restart_cnt=restarts, priority=9, **times, **WHOLE)
    short = parked("8", time_limit=10, submit_time=int(bench.wall) - 30, priority=8, **WHOLE)
    slurm.write([long, short], ["n1"])
    (owner,) = {job.user for job in slurm.client().jobs()}
    with open_store(slurm.store) as store:
        at = {"submitted_at": bench.wall - 90_000, "decided_at": bench.wall - since_s + 1}
        asked = {"gpus": 4, "waits_since_s": bench.wall - since_s}
        Ledger(store).add_decision(decision("7", user=owner, state="waiting", asked=asked, **at))
    assert bench.rounds.run().placed == [placed]


def test_a_placement_keeps_when_the_wait_began(slurm: SlurmFolder) -> None:
    bench = RoundsBench(slurm, load_config(slurm.config))
    times = {"submit_time": int(bench.wall) - 9_000, "accrue_time": int(bench.wall) - 700}
    slurm.write([parked("7", **times)], ["n1"])
    assert bench.rounds.run().placed == ["7"]
    (decided,) = slurm.ledger("7")
    assert decided.asked["waits_since_s"] == int(bench.wall) - 700


def test_a_store_that_failed_is_asked_again(slurm: SlurmFolder) -> None:
    """What it could not tell once counts a minute later."""
    slurm.config.write_text(slurm.config.read_text() + ORDER)
    bench = RoundsBench(slurm, load_config(slurm.config))
    again = {"restart_cnt": 1, "submit_time": int(bench.wall) - 60}
    slurm.write([parked("7", **WHOLE, **again)], ["n1"], drained={"n1": [0]})

    def first_s() -> float | None:
        bench.rounds.run()
        return bench.rounds.site.of(FirstSubmissions).known["7"][0]

    assert first_s() is None
    with open_store(slurm.store) as store:
        at = {"submitted_at": bench.wall - 4000, "decided_at": bench.wall - 3999}
        (owner,) = {job.user for job in slurm.client().jobs()}
        Ledger(store).add_decision(decision("7", user=owner, state="waiting", **at))
    assert first_s() is None
    bench.steady += 61.0
    assert first_s() == bench.wall - 4000
