"""Jobs that are left to Slurm: their gate is opened, and the ledger says why.

What is written down is what Slurm has taken. A job whose update is refused stays parked and is
tried again later, not in every round.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set

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
        """Open the gate for jobs that cannot be placed, each with the reason why.

        ``split``: arrays of which tasks stand in records of their own; see `update_ids`.
        Returns (ids of the jobs that Slurm was told about, why each job stays parked that does).
        Raises SourceError if Slurm does not answer.
        """
        stays: dict[str, str] = {}
        due: dict[str, tuple[GatedJob, str]] = {}
        for job, reason in jobs:
            wait_s = self._backoff.wait_s(job.id, "Licenses")
            if wait_s is not None:
                stays[job.id] = f"cannot be left to Slurm; tried again in {wait_s:.0f} s"
            else:
                due[job.id] = (job, reason)
        if not due:
            return set(), stays
        gated = [job for job, _ in due.values()]
        done = release(self._client, self._gate, gated, now, then=JobPhase.LEFT, split=split)
        for job_id, ids in done.opened.items():
            reason = due[job_id][1]
            for name in dict.fromkeys([*ids, job_id] if job_id not in done.wrong else ids):
                self._ledger.event(name, "released", {"left_to_slurm": reason}, now)
            if job_id not in done.wrong:
                log.info("job %s is left to Slurm: %s", job_id, reason)
                self._tracker.withdraw(job_id, {"why": reason}, now)
        for job_id, why in done.wrong.items():
            wait_s = self._backoff.punish(job_id)
            stays[job_id] = f"could not be left to Slurm: {why}"
            log.warning("job %s %s; tried again in %.0f s", job_id, stays[job_id], wait_s)
        return set(due), stays
