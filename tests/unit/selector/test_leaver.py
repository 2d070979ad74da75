"""Jobs that are left to Slurm, and what is written down of it."""

from collections.abc import Sequence

import pytest
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import gated_jobs
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.leaver import Leaver
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.updates import JobUpdate


class LeaverBench:
    """A leaver over a Slurm of our own."""

    def __init__(self, slurm: SlurmFolder) -> None:
        self.slurm = slurm
        self.now = 0.0
        self.client = slurm.client()
        self.ledger = LedgerWriter(slurm.store)
        backoff = Backoff(60.0, lambda: self.now)
        self.tracker = JobTracker(self.ledger)
        self.leaver = Leaver(self.client, Config().gate, self.tracker, backoff)

    def leave(self, now: float) -> tuple[set[str], dict[str, str]]:
        self.now = now
        gated = gated_jobs(self.client.jobs(), GateConfig())
        return self.leaver.leave([(job, "too odd") for job in gated if job.parked], now)

    def leave_orphans(self) -> None:
        self.leaver.leave_orphans(self.client.jobs(), self.now, frozenset(), gate_held=True)


def test_what_slurm_refuses_is_not_called_released_and_tried_again_later(
    slurm: SlurmFolder,
) -> None:
    slurm.write([parked("7"), parked("8", stuck=True)], ["n1"])
    slurm.set(refuse=["7"])
    bench = LeaverBench(slurm)
    told, stays = bench.leave(1000.0)
    assert told == {"7", "8"}
    assert list(stays) == ["7"]
    assert (bench.slurm.kinds("7"), bench.slurm.kinds("8")) == ([], ["released"])
    slurm.set(refuse=[])
    slurm.write([parked("7")], ["n1"])
    assert bench.leave(1059.0) == (set(), {"7": "cannot be left to Slurm; tried again in 1 s"})
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1"
    assert bench.leave(1061.0) == ({"7"}, {})
    assert slurm.jobs["7"]["licenses"] == ""
    assert bench.slurm.kinds("7") == ["released"]


def test_what_was_sent_is_written_before_the_next_part(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm stops answering in between: what it has taken is known all the same."""
    slurm.write([parked(str(n), stuck=True) for n in range(100, 250)], ["n1"])
    slurm.set(refuse=["105"])
    bench = LeaverBench(slurm)
    send = bench.client.update_jobs
    sent: list[list[str]] = []

    def update_jobs(updates: Sequence[JobUpdate]) -> dict[str, str]:
        if updates and len(sent) == 1:
            raise SourceError("no answer")
        sent.extend([[update.job_id for update in updates]] if updates else [])
        return send(updates)

    monkeypatch.setattr(bench.client, "update_jobs", update_jobs)
    with pytest.raises(SourceError):
        bench.leave(1000.0)
    assert sent == [[str(n) for n in range(100, 200)]]
    written = {n for n in range(100, 250) if bench.slurm.kinds(str(n)) == ["released"]}
    assert written == set(range(100, 200)) - {105}


def test_an_orphan_that_slurm_refuses_is_tried_again_later(slurm: SlurmFolder) -> None:
    slurm.write([parked("7", admin_comment="ticket-4711")], ["n1"])
    slurm.set(refuse=["7"])
    bench = LeaverBench(slurm)
    bench.ledger.event("7", "parked", {}, 900.0)
    bench.now = 1000.0
    bench.leave_orphans()
    assert bench.slurm.kinds("7") == ["parked"]
    slurm.set(refuse=[])
    bench.now = 1001.0
    bench.leave_orphans()
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1"
    bench.now = 1061.0
    bench.leave_orphans()
    assert slurm.jobs["7"]["licenses"] == ""
    assert bench.slurm.kinds("7") == ["parked", "released"]
