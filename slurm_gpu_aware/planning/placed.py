"""Placement of a queue: its plan, and what the stages after it need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import Plan


@dataclass(frozen=True)
class Started:
    """A job that a round starts."""

    request: Request
    assignment: Assignment
    job: RunningJob


@dataclass(frozen=True, eq=False)
class Placement:
    """A queue after its placement."""

    plan: Plan
    queue: Sequence[Request]
    cluster: Cluster
    """The cluster as the placement found it."""
    started: Sequence[Started]
    """The jobs of ``plan.assignments``."""
    spare: Cluster
    """The cluster after the placement, without what a waiting job can use, now or when the first of
    them starts."""
    dispatcher: Dispatcher
