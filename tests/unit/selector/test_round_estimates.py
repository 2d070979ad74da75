"""Estimates in a round: what the planner gets, and what the ledger keeps of it."""

from typing import Any

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked
from store_samples import decision

from slurm_gpu_aware.features.estimates.history import JobKind, RunHistory
from slurm_gpu_aware.features.estimates.metrics import quality
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.planning.record import read_round, replay
from slurm_gpu_aware.selector.round_state import Outcome


def with_history(slurm: SlurmFolder) -> RoundsBench:
    """Rounds that know five runs of 600 s of the kind of the site's first job."""
    (job, *_) = slurm.client().jobs()
    history = RunHistory()
    for _ in range(5):
        history.add(JobKind(job.user, job.name, job.account or "", 2, job.time_limit_s), 600.0)
    return RoundsBench(slurm, history=history)


def asked(outcome: Outcome) -> Any:
    """What the planner was asked, by the record of the round."""
    return read_round(outcome.planned(), FEATURES).asked


def expected_ends(outcome: Outcome) -> dict[str, float | None]:
    return {job.job_id: job.expected_end_s for job in asked(outcome).cluster.running}


def test_placed_jobs_have_estimates_in_plan_record_and_ledger(slurm: SlurmFolder) -> None:
    slurm.write([parked(), parked("8")], ["n1"])
    outcome = with_history(slurm).run()
    assert sorted(outcome.placed) == ["7", "8"]
    recorded = read_round(outcome.planned(), FEATURES)
    estimates = {request.job_id: request.estimate_s for request in recorded.asked.queue}
    assert estimates.keys() == {"7", "8"}
    assert all(600 < (estimate or 0) < 800 for estimate in estimates.values())
    assert replay(recorded, FEATURES) == []
    (entry,) = slurm.ledger("7")
    kept = entry.why["estimate"]
    assert (kept["source"], kept["runs"], kept["seconds"]) == ("name", 5, estimates["7"])
    assert entry.asked["name"] == slurm.client().jobs()[0].name


def test_a_long_name_is_cut_in_the_ledger(slurm: SlurmFolder) -> None:
    slurm.write([parked(name="x" * 5000)], ["n1"])
    RoundsBench(slurm).run()
    assert slurm.ledger("7")[0].asked["name"] == "x" * 128


def test_running_and_released_jobs_have_expected_ends(slurm: SlurmFolder) -> None:
    slurm.write([parked(), parked("8", stuck=True)], ["n1", "n2"])
    bench = with_history(slurm)
    bench.run()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    started = next(job.start_s for job in slurm.client().jobs() if job.id == "7")
    bench.wall = started + 60
    slurm.add(parked("9"))
    ends = expected_ends(bench.run())
    assert 600 < ends["7"] - started < 800
    assert 600 < ends["8"] - bench.wall < 800  # it starts any moment
    bench.wall = ends["7"] + 10
    slurm.add(parked("10"))
    assert expected_ends(bench.run())["7"] == started + 3600  # no run was longer: its limit


def test_without_history_nothing_is_estimated(slurm: SlurmFolder) -> None:
    slurm.write([parked()], ["n1"])
    outcome = RoundsBench(slurm, history=RunHistory()).run()
    assert [request.estimate_s for request in asked(outcome).queue] == [None]
    assert "estimate" not in slurm.ledger("7")[0].why


def test_a_job_that_waits_shows_its_estimate(slurm: SlurmFolder) -> None:
    slurm.write([parked(), parked("8", 4)], ["n1"])
    (waiting,) = with_history(slurm).run().waiting
    assert waiting["job_id"] == "8"
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
