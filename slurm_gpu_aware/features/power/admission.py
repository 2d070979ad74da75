"""Clock of a job, as it says."""

from dataclasses import replace

from slurm_gpu_aware.admission.context import QueueEntry
from slurm_gpu_aware.features.power.declared import FREQ
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import Request


def clocked(request: Request, entry: QueueEntry, hints: JobHints) -> Request:
    """The request with the clock of its hints."""
    clock = hints.get(FREQ)
    return request if clock is None else replace(request, clock=clock)


ASKED = clocked
