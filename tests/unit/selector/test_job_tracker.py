"""What becomes of placed jobs, also of those that cannot be read for a while."""

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

import pytest
from make import slurm_job
from store_samples import decision

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.gated_job import gated_jobs
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.records import NodeShare, SlurmJob
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


def observe(
    tracker: JobTracker, jobs: Sequence[SlurmJob], now: float, unread: Set[int] = frozenset()
) -> None:
    tracker.observe(jobs, gated_jobs(jobs, GateConfig()), now, unread)


def runs_on_n1(number: int) -> SlurmJob:
    return slurm_job(number, state="RUNNING", reason="None", start_s=5.0, nodes=("n1",))


@pytest.fixture
def tracker(tmp_path: Path) -> JobTracker:
    found = JobTracker(LedgerWriter(tmp_path / "store.db"))
    found.placed["7"] = Tracked(None, JobPhase.RELEASED, ("n1",), (0, 1), 0)
    found.placed["8"] = Tracked(None, JobPhase.RELEASED, ("n1",), (2, 3), 0)
    return found


def test_a_job_that_is_unread_is_not_gone(tracker: JobTracker) -> None:
    observe(tracker, [runs_on_n1(7), runs_on_n1(8)], 10.0)
    observe(tracker, [runs_on_n1(8)], 11.0, {7})
    assert set(tracker.placed) == {"7", "8"}
    observe(tracker, [runs_on_n1(7)], 12.0, {9})
    assert set(tracker.placed) == {"7"}
    observe(tracker, [], 13.0)
    assert not tracker.placed


def test_while_records_are_unread_a_job_of_unknown_number_is_not_gone(tracker: JobTracker) -> None:
    observe(tracker, [], 10.0, {7})
    assert set(tracker.placed) == {"7", "8"}
    observe(tracker, [], 11.0)
    assert not tracker.placed


def kinds(tracker: JobTracker, job_id: str) -> list[str]:
    assert tracker.ledger._open() is not None
    with open_store(tracker.ledger.path, readonly=True) as store:
        return [event.kind for event in Ledger(store).events(job_id)]


def ours(number: int, state: str, mark: str = "", licence: bool = False) -> SlurmJob:
    job = runs_on_n1(number)
    return replace(
        job,
        state=state,
        start_s=20.0,
        nodes=() if state == "PENDING" else job.nodes,
        admin_comment=f"gpuaware/1;tn=gres/gpu:1{mark}",
        licenses=(("gpuaware", 1),) if licence else (),
    )


def test_a_start_without_the_selector_is_recorded_with_its_end(tracker: JobTracker) -> None:
    """The gate opened by itself: parked jobs start with the gate's licence."""
    tracker.placed.clear()
    for now, state in enumerate(("PENDING", "RUNNING", "RUNNING", "COMPLETED", "COMPLETED")):
        observe(tracker, [ours(3, state, licence=True)], 10.0 * now)
    assert kinds(tracker, "3") == ["parked", "started", "ended"]
    again = JobTracker(tracker.ledger)
    observe(again, [ours(4, "RUNNING", licence=True)], 11.0)
    observe(JobTracker(tracker.ledger), [ours(4, "RUNNING", licence=True)], 12.0)
    assert kinds(tracker, "4") == ["started"]


def test_an_operator_s_release_is_told_once(tracker: JobTracker) -> None:
    tracker.placed.clear()
    hand = ";sel=opened:0:12"
    observe(tracker, [ours(5, "PENDING", licence=True)], 9.0)
    for now, state in ((13, "PENDING"), (14, "PENDING"), (20, "RUNNING"), (30, "COMPLETED")):
        observe(tracker, [ours(5, state, hand)], now)
        observe(JobTracker(tracker.ledger), [ours(5, state, hand)], now)
    assert kinds(tracker, "5") == ["parked", "opened_by_hand", "started", "ended"]


def test_a_job_left_to_slurm_was_not_opened_by_hand(tracker: JobTracker) -> None:
    tracker.placed.clear()
    tracker.ledger.event("6", "released", {"left_to_slurm": "several models"}, 9.0)
    observe(tracker, [ours(6, "PENDING", ";sel=left:0:12")], 10.0)
    observe(tracker, [ours(6, "RUNNING", ";sel=left:0:12")], 11.0)
    assert kinds(tracker, "6") == ["released", "started"]


def test_jobs_of_others_are_not_told(tracker: JobTracker) -> None:
    tracker.placed.clear()
    observe(tracker, [runs_on_n1(7)], 10.0)
    assert kinds(tracker, "7") == []


@pytest.mark.parametrize("reservation", [None, "theirs"])
def test_a_task_parked_again_was_submitted_like_its_array(
    tracker: JobTracker, reservation: str | None
) -> None:
    rest = replace(ours(9, "PENDING", licence=True), array_id=9, array_tasks="3-9")
    observe(tracker, [replace(rest, reservation=reservation)], 10.0)
    tracker.ledger.event("9_3", "parked", {"why": "requeued", "restarts": 1}, 20.0)
    task = replace(rest, id="9_3", raw_id=10, array_tasks=None)
    observe(tracker, [task], 30.0)
    assert tracker.asked_for_none(task) is (reservation is None)


@pytest.mark.parametrize(("slot", "as_planned"), [(2, True), (1, False)])
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_a_job_with_shards_started_as_planned(
    tracker: JobTracker, state: str, slot: int, as_planned: bool
) -> None:
    decided = tracker.ledger.decide(decision("9", nodes=["n1"], slots=[[2]]))
    tracker.placed["9"] = Tracked(decided, JobPhase.RELEASED, ("n1",), (2,), 0)
    share = NodeShare("n1", 1, 500, (), shards={slot: 1})
    job = replace(
        runs_on_n1(9),
        state=state,
        shares=(share,) if state == "RUNNING" else (),
        gpu_types=frozenset({f"g{slot}"}),
    )
    observe(tracker, [job], 10.0)
    (event,) = [e for e in tracker.ledger.events("9") if e.kind == "started"]
    assert event.detail["as_planned"] is as_planned
