"""A job as Slurm shows it, for tests that care about a few of its fields."""

from __future__ import annotations

import math
from typing import Any

from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["slurm_job"]


def slurm_job(number: int = 7, **fields: Any) -> SlurmJob:
    """A pending job of alice's that waits at the gate, but for ``fields``."""
    usual: dict[str, Any] = {
        "name": "job",
        "user": "alice",
        "uid": 2001,
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
        "batch": True,
    }
    return SlurmJob(id=str(number), raw_id=number, **{**usual, **fields})
