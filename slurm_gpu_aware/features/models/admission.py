"""Performance model of a job, as it says."""

from slurm_gpu_aware.admission.context import QueueEntry
from slurm_gpu_aware.features.models.declared import NAMED_MODEL
from slurm_gpu_aware.features.models.performance_model import MODEL
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import Request


def with_model(request: Request, entry: QueueEntry, hints: JobHints) -> Request:
    """The request with the name of its model."""
    return request.put(MODEL, hints.get(NAMED_MODEL))


ASKED = with_model
