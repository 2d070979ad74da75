"""Jobs that an interrupted round bound: they get their own request back."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.slurm.client import SlurmClient

log = logging.getLogger(__name__)


def restore_interrupted(
    client: SlurmClient,
    gate: GateConfig,
    tracker: JobTracker,
    jobs: Sequence[GatedJob],
    now: float,
    split: Set[int],
) -> None:
    """Restore parked jobs that this round neither places nor leaves. Raises SourceError."""
    done = restore(client, gate, jobs, now, split=split)
    for job_id, why in done.wrong.items():
        log.warning("job %s is not restored; tried again in the next round: %s", job_id, why)
    for job in done.parked:
        if job.id not in done.wrong:
            tracker.withdraw(job.id, {"why": "interrupted"}, now)
