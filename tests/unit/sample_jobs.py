"""A job as Slurm shows it, for tests that care about a few of its fields."""

from __future__ import annotations

import math
from typing import Any

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_job
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["as_gated", "request_of", "slurm_job"]


def slurm_job(number: int = 7, **fields: Any) -> SlurmJob:
    """A pending job of alice's that waits at the gate, but for ``fields``."""
    usual: dict[str, Any] = {
        "name": "job",
        "user": "alice",
        "state": "PENDING",
        "reason": "Licenses",
        "partitions": ("gpu",),
        "priority": 1,
        "submit_s": 1.0,
        "eligible_s": 1.0,
        "start_s": None,
        "end_s": math.inf,
        "time_limit_s": 600.0,
        "restarts": 0,
    }
    return SlurmJob(id=str(number), raw_id=number, **{**usual, **fields})


def as_gated(job: SlurmJob, **gate: Any) -> GatedJob:
    """The gated job of a record that the filter has marked."""
    found = gated_job(job, GateConfig(**gate))
    assert found is not None
    return found


def request_of(job: SlurmJob, original: OriginalRequest, context: AdmissionContext) -> Request:
    """The planner's request of a waiting job whose user asked for ``original``."""
    return to_request(GatedJob(job, original, None, JobPhase.WAITING), context)
