"""Jobs that an interrupted round bound: they get their own request back."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient

log = logging.getLogger(__name__)


@dataclass
class Interrupted:
    """Restores parked jobs that a round neither places nor leaves."""

    client: SlurmClient
    gate: GateConfig
    tracker: JobTracker
    _untouched: dict[int, GatedJob] = field(default_factory=dict)
    """Jobs with their own request, as last read: an unchanged record need not be looked at."""

    def restore(self, jobs: Sequence[GatedJob], now: float, split: Set[int]) -> None:
        """Restore what needs it of these jobs. Raises SourceError."""
        seen, placed = self._untouched, self.tracker.placed
        known = [job for job in jobs if seen.get(id(job)) is job and job.id not in placed]
        ids = {job.id for job in known}
        jobs = [job for job in jobs if job.id not in ids]
        done = restore(self.client, self.gate, jobs, now, split=split)
        self._untouched = {id(job): job for job in (*known, *done.untouched)}
        for job_id, why in done.wrong.items():
            log.warning("job %s is not restored; tried again in the next round: %s", job_id, why)
        for job in done.parked:
            if job.id not in done.wrong:
                self.tracker.withdraw(job.id, {"why": "interrupted"}, now)
