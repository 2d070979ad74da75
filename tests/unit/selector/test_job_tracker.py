"""What becomes of placed jobs, also of those that cannot be read for a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_jobs import slurm_job

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


def running(number: int) -> SlurmJob:
    return slurm_job(number, state="RUNNING", reason="None", start_s=5.0, nodes=("n1",))


@pytest.fixture
def watch(tmp_path: Path) -> JobTracker:
    found = JobTracker(LedgerWriter(tmp_path / "store.db"), Config())
    found.placed["7"] = Tracked(None, "released", ("n1",), (0, 1), 0)
    found.placed["8"] = Tracked(None, "released", ("n1",), (2, 3), 0)
    return found


def test_a_job_that_is_unread_is_not_gone(watch: JobTracker) -> None:
    watch.observe([running(7), running(8)], 10.0)
    watch.observe([running(8)], 11.0, {7})
    assert set(watch.placed) == {"7", "8"}
    watch.observe([running(7)], 12.0, {9})
    assert set(watch.placed) == {"7"}
    watch.observe([], 13.0)
    assert not watch.placed


def test_while_records_are_unread_a_job_of_unknown_number_is_not_gone(watch: JobTracker) -> None:
    watch.observe([], 10.0, {7})
    assert set(watch.placed) == {"7", "8"}
    watch.observe([], 11.0)
    assert not watch.placed


def kinds(watch: JobTracker, job_id: str) -> list[str]:
    assert watch.ledger.usable
    with open_store(watch.ledger._path, readonly=True) as store:
        return [event.kind for event in Ledger(store).events(job_id)]


def ours(number: int, state: str, mark: str = "", licence: bool = False) -> SlurmJob:
    job = running(number)
    return replace(
        job,
        state=state,
        start_s=20.0,
        nodes=() if state == "PENDING" else job.nodes,
        admin_comment=f"gpuaware/1;tn=gres/gpu:1{mark}",
        licenses=(("gpuaware", 1),) if licence else (),
    )


def test_what_starts_without_us_is_told_with_its_end(watch: JobTracker) -> None:
    """The gate opened by itself: parked jobs start with the gate's licence."""
    watch.placed.clear()
    for now, state in enumerate(("PENDING", "RUNNING", "RUNNING", "COMPLETED", "COMPLETED")):
        watch.observe([ours(3, state, licence=True)], 10.0 * now)
    assert kinds(watch, "3") == ["parked", "started", "ended"]
    again = JobTracker(watch.ledger, Config())
    again.observe([ours(4, "RUNNING", licence=True)], 11.0)
    JobTracker(watch.ledger, Config()).observe([ours(4, "RUNNING", licence=True)], 12.0)
    assert kinds(watch, "4") == ["started"]


def test_an_operator_s_release_is_told_once(watch: JobTracker) -> None:
    watch.placed.clear()
    hand = ";sel=hand:0:12"
    watch.observe([ours(5, "PENDING", licence=True)], 9.0)
    for now, state in ((13, "PENDING"), (14, "PENDING"), (20, "RUNNING"), (30, "COMPLETED")):
        watch.observe([ours(5, state, hand)], now)
        JobTracker(watch.ledger, Config()).observe([ours(5, state, hand)], now)
    assert kinds(watch, "5") == ["parked", "opened_by_hand", "started", "ended"]


def test_a_job_left_to_slurm_was_not_opened_by_hand(watch: JobTracker) -> None:
    watch.placed.clear()
    watch.ledger.event("6", "released", {"left_to_slurm": "several models"}, 9.0)
    watch.observe([ours(6, "PENDING", ";sel=hand:0:12")], 10.0)
    watch.observe([ours(6, "RUNNING", ";sel=hand:0:12")], 11.0)
    assert kinds(watch, "6") == ["released", "started"]


def test_jobs_of_others_are_not_told(watch: JobTracker) -> None:
    watch.placed.clear()
    watch.observe([running(7)], 10.0)
    assert kinds(watch, "7") == []
