"""Whether a job has a clock of its own."""

from slurm_gpu_aware.admission.context import QueueEntry
from slurm_gpu_aware.features.energy.declared import OWN_CLOCK
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import Request


def own_clock(request: Request, entry: QueueEntry, hints: JobHints) -> Request:
    """The request; it says whether Slurm sets the clock (``--gpu-freq``)."""
    return request.put(OWN_CLOCK, bool(entry.original.tres_freq))


ASKED = own_clock
