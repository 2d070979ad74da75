"""What becomes of placed jobs, also of those that cannot be read for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpu_aware.config import Config
from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.service.watch import Tracked, Watch
from slurm_gpu_aware.slurm.gateway import SlurmJob


def running(number: int) -> SlurmJob:
    return SlurmJob(
        id=str(number),
        raw_id=number,
        name="job",
        user="alice",
        uid=2001,
        state="RUNNING",
        reason="None",
        partitions=("gpu",),
        priority=1,
        submit_s=0.0,
        eligible_s=None,
        start_s=5.0,
        end_s=100.0,
        time_limit_s=60.0,
        restarts=0,
        batch=True,
        nodes=("n1",),
    )


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    found = Watch(Books(tmp_path / "store.db"), Config())
    found.placed["7"] = Tracked(None, "released", ("n1",), (0, 1), 0)
    found.placed["8"] = Tracked(None, "released", ("n1",), (2, 3), 0)
    return found


def test_a_job_that_is_unread_is_not_gone(watch: Watch) -> None:
    watch.observe([running(7), running(8)], 10.0)
    watch.observe([running(8)], 11.0, {7})
    assert set(watch.placed) == {"7", "8"}
    watch.observe([running(7)], 12.0, {9})
    assert set(watch.placed) == {"7"}
    watch.observe([], 13.0)
    assert not watch.placed


def test_while_records_are_unread_a_job_of_unknown_number_is_not_gone(watch: Watch) -> None:
    watch.observe([], 10.0, {7})
    assert set(watch.placed) == {"7", "8"}
    watch.observe([], 11.0)
    assert not watch.placed
