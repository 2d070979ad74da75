"""Estimates in a round: what the planner gets, and what the ledger keeps of it."""

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked
from store_samples import decision

from slurm_gpu_aware.features.estimates.history import JobKind, RunHistory
from slurm_gpu_aware.features.estimates.metrics import quality
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.planning.record import read_round, replay
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


def history_with(slurm: SlurmFolder, *runs: float) -> RunHistory:
    """Runs of the kind of the first job of a site."""
    (job, *_) = slurm.client().jobs()
    history = RunHistory()
    for run in runs:
        kind = JobKind(job.user, job.name, job.account or "", 2, job.time_limit_s)
        history.add(kind, run)
    return history


def test_placed_jobs_have_estimates_in_plan_record_and_ledger(slurm: SlurmFolder) -> None:
    slurm.write([parked(), parked("8")], ["n1"])
    bench = RoundsBench(slurm, history=history_with(slurm, *[600.0] * 5))
    outcome = bench.rounds.run()
    assert sorted(outcome.placed) == ["7", "8"]
    assert outcome.planned is not None
    recorded = read_round(outcome.planned(), FEATURES)
    estimates = {request.job_id: request.estimate_s for request in recorded.asked.queue}
    assert estimates.keys() == {"7", "8"}
    assert all(600 < (estimate or 0) < 800 for estimate in estimates.values())
    assert replay(recorded, FEATURES) == []
    with open_store(slurm.store, readonly=True) as store:
        (entry,) = Ledger(store).decisions("7")
    kept = entry.why["estimate"]
    assert (kept["source"], kept["runs"], kept["seconds"]) == ("name", 5, estimates["7"])
    assert entry.asked["name"] == slurm.client().jobs()[0].name


def test_a_long_name_is_cut_in_the_ledger(slurm: SlurmFolder) -> None:
    slurm.write([parked(name="x" * 5000)], ["n1"])
    RoundsBench(slurm, history=RunHistory()).rounds.run()
    with open_store(slurm.store, readonly=True) as store:
        (entry,) = Ledger(store).decisions("7")
    assert entry.asked["name"] == "x" * 128


def test_running_and_released_jobs_have_expected_ends(slurm: SlurmFolder) -> None:
    slurm.write([parked(), parked("8", stuck=True)], ["n1", "n2"])
    bench = RoundsBench(slurm, history=history_with(slurm, *[600.0] * 5))
    bench.rounds.run()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    jobs = slurm.client().jobs()
    started = next(job.start_s for job in jobs if job.id == "7")
    assert started is not None
    bench.wall = started + 60
    with slurm.state() as state:
        state["jobs"].append(parked("9"))
    outcome = bench.rounds.run()
    assert outcome.planned is not None
    ends = {
        job.job_id: job for job in read_round(outcome.planned(), FEATURES).asked.cluster.running
    }
    seven, eight = ends["7"].expected_end_s, ends["8"].expected_end_s
    assert seven is not None
    assert eight is not None
    assert 600 < seven - started < 800
    assert 600 < eight - bench.wall < 800  # it starts any moment
    bench.wall = seven + 10
    with slurm.state() as state:
        state["jobs"].append(parked("10"))
    outcome = bench.rounds.run()
    assert outcome.planned is not None
    running = {
        job.job_id: job for job in read_round(outcome.planned(), FEATURES).asked.cluster.running
    }
    assert running["7"].expected_end_s == started + 3600  # no run was longer: its limit


def test_without_history_nothing_is_estimated(slurm: SlurmFolder) -> None:
    slurm.write([parked()], ["n1"])
    bench = RoundsBench(slurm, history=RunHistory())
    outcome = bench.rounds.run()
    assert outcome.planned is not None
    assert [
        request.estimate_s for request in read_round(outcome.planned(), FEATURES).asked.queue
    ] == [None]
    with open_store(slurm.store, readonly=True) as store:
        (entry,) = Ledger(store).decisions("7")
    assert "estimate" not in entry.why


def test_a_job_that_waits_shows_its_estimate(slurm: SlurmFolder) -> None:
    big = parked("8", tres_per_node="gres/gpu:4", admin_comment="gpuaware/1;tn=gres/gpu:4;mc=1")
    slurm.write([parked(), big], ["n1"])
    bench = RoundsBench(slurm, history=history_with(slurm, *[600.0] * 5))
    outcome = bench.rounds.run()
    (waiting,) = [entry for entry in outcome.waiting if entry["job_id"] == "8"]
    assert waiting["estimate"]["source"] in ("name", "user")


@pytest.mark.parametrize(("ran", "within"), [(1100, 1.0), (1500, 0.0)])
def test_quality_compares_with_the_slowdown_that_was_predicted(ran: float, within: float) -> None:
    estimate = {"seconds": 600.0, "source": "name", "runs": 5, "limit_s": 3600.0}
    one = decision(
        "7",
        slowdown=2.0,
        why={"estimate": estimate},
        state="ended",
        outcome_at=1000.0 + ran,
        outcome={"start_s": 1000.0, "state": "COMPLETED"},
    )
    rows = quality([one, decision("8")])
    assert [row["source"] for row in rows] == ["name", "all"]
    assert rows[0]["jobs"] == 1
    assert rows[0]["median"] == pytest.approx(ran / 1200)
    assert rows[0]["median_of_limit"] == pytest.approx(ran / 3600)
    assert rows[0]["within"] == within
    assert quality([decision("8")]) == []
