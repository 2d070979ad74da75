"""Order of the queue after a requeue, which is a new submission for Slurm."""

from typing import Any

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


def queue_of_two(slurm: SlurmFolder, restarts: int = 1, **times: float) -> RoundsBench:
    """Jobs 7 and 8 wait for a whole node; the shorter one passes the other within the bound only.

    ``times``: of job 7, in seconds before now.
    """
    slurm.configure(ORDER)
    bench = RoundsBench(slurm, load_config(slurm.config))
    at = {name: int(bench.wall - ago_s) for name, ago_s in times.items()}
    long = parked("7", 4, time_limit=600, restart_cnt=restarts, priority=9, **at)
    short = parked("8", 4, time_limit=10, submit_time=int(bench.wall) - 30, priority=8)
    slurm.write([long, short], ["n1"])
    return bench


def decide(slurm: SlurmFolder, submitted_at: float, decided_at: float, **fields: Any) -> None:
    """A decision on job 7 that did not start it, of its owner if no other is named."""
    owner = {"user": slurm.client().jobs()[0].user, "state": "waiting"}
    times = {"submitted_at": submitted_at, "decided_at": decided_at}
    with open_store(slurm.store) as store:
        Ledger(store).add_decision(decision("7", **{**owner, **times, **fields}))


@pytest.mark.parametrize(
    ("user", "first_s", "placed"),
    [({}, 4000, "7"), ({}, 3000, "8"), ({"user": "another"}, 4000, "8")],
)
def test_a_requeue_begins_no_new_time_in_which_jobs_pass(
    slurm: SlurmFolder, user: dict[str, str], first_s: int, placed: str
) -> None:
    """Job 7 was requeued a minute ago."""
    bench = queue_of_two(slurm, submit_time=60)
    decide(slurm, bench.wall - first_s, bench.wall - first_s + 1, **user)
    outcome = bench.run()
    assert outcome.placed == [placed]
    queue = read_round(outcome.planned(), FEATURES).asked.queue
    since = {one.job_id: bench.wall - one.waits_since_s for one in queue}
    assert since == {"7": 60 if user else first_s, "8": 30}


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
    times = (60, 60) if restarts else (90_000, since_s)
    bench = queue_of_two(slurm, restarts, submit_time=times[0], accrue_time=times[1])
    asked = {"gpus": 4, "waits_since_s": bench.wall - since_s}
    decide(slurm, bench.wall - 90_000, bench.wall - since_s + 1, asked=asked)
    assert bench.run().placed == [placed]


def test_a_placement_keeps_when_the_wait_began(slurm: SlurmFolder) -> None:
    bench = RoundsBench(slurm)
    times = {"submit_time": int(bench.wall) - 9_000, "accrue_time": int(bench.wall) - 700}
    slurm.write([parked("7", **times)], ["n1"])
    assert bench.run().placed == ["7"]
    (decided,) = slurm.ledger("7")
    assert decided.asked["waits_since_s"] == int(bench.wall) - 700


def test_a_store_that_failed_is_asked_again(slurm: SlurmFolder) -> None:
    """What it could not tell once counts a minute later."""
    bench = queue_of_two(slurm, submit_time=60)
    slurm.write([slurm.jobs["7"]], ["n1"], drained={"n1": [0]})

    def first_s() -> float | None:
        bench.run()
        return bench.rounds.site.of(FirstSubmissions).known["7"][0]

    assert first_s() is None
    decide(slurm, bench.wall - 4000, bench.wall - 3999)
    assert first_s() is None
    bench.steady += 61.0
    assert first_s() == bench.wall - 4000
