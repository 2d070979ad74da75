"""Release of jobs that are left to Slurm: opens their gate and records why.

The ledger gets only the updates that Slurm accepts. A refused job stays parked and is tried again
after a back-off.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.release import release
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.client import SlurmClient

__all__ = ["Leaver"]

log = logging.getLogger(__name__)

_AT_ONCE = 100
"""Jobs of one call; the ledger is written after each, as Slurm may stop answering."""


class Leaver:
    """Leaves jobs to Slurm."""

    def __init__(
        self,
        client: SlurmClient,
        gate: GateConfig,
        ledger: LedgerWriter,
        tracker: JobTracker,
        backoff: Backoff,
    ) -> None:
        self._client = client
        self._gate = gate
        self._ledger = ledger
        self._tracker = tracker
        self._backoff = backoff

    def leave(
        self, jobs: Sequence[tuple[GatedJob, str]], now: float, split: Set[int] = frozenset()
    ) -> tuple[set[str], dict[str, str]]:
        """Open the gate for jobs that cannot be placed, each with the reason.

        ``split``: arrays of which tasks have records of their own; see `update_ids`. Returns (ids
        of the updated jobs, job that stays parked -> why). Raises SourceError if Slurm does not
        answer.
        """
        stays: dict[str, str] = {}
        due: dict[str, tuple[GatedJob, str]] = {}
        for job, reason in jobs:
            wait_s = self._backoff.wait_s(job.id, "Licenses")
            if wait_s is not None:
                stays[job.id] = f"cannot be left to Slurm; tried again in {wait_s:.0f} s"
            else:
                due[job.id] = (job, reason)
        gated = [job for job, _ in due.values()]
        reasons = {job_id: reason for job_id, (_, reason) in due.items()}
        for start in range(0, len(gated), _AT_ONCE):
            stays |= self._leave(gated[start : start + _AT_ONCE], reasons, now, split)
        return set(due), stays

    def _leave(
        self,
        jobs: Sequence[GatedJob],
        reasons: Mapping[str, str],
        now: float,
        split: Set[int],
    ) -> dict[str, str]:
        """Open the gate of some jobs and record it; return job that stays parked -> why."""
        stays: dict[str, str] = {}
        done = release(self._client, self._gate, jobs, now, then=JobPhase.LEFT, split=split)
        for job_id, ids in done.opened.items():
            reason = reasons[job_id]
            for name in dict.fromkeys([*ids, job_id] if job_id not in done.wrong else ids):
                self._ledger.event(name, "released", {"left_to_slurm": reason}, now)
            if job_id not in done.wrong:
                log.info("job %s is left to Slurm: %s", job_id, reason)
                self._tracker.withdraw(job_id, {"why": reason}, now)
        for job_id, why in done.wrong.items():
            wait_s = self._backoff.punish(job_id)
            stays[job_id] = f"could not be left to Slurm: {why}"
            log.warning("job %s %s; tried again in %.0f s", job_id, stays[job_id], wait_s)
        return stays
