"""State of one round: the jobs as it reads them, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation


@dataclass
class Outcome:
    """Result of a round."""

    queued: int = 0
    placed: list[str] = field(default_factory=list)
    blocked: int = 0
    """Parked jobs that something other than the gate holds."""
    untried: int = 0
    """Parked jobs that have a place and that Slurm must try first."""
    unpooled: int = 0
    """Parked jobs that a later round puts into the holding pool."""
    doubtful: int = 0
    """Jobs that seem impossible, which only the next round can say."""
    full: bool = False
    """No GPU is free after the round."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0
    planned: Callable[[], Mapping[str, Any]] | None = None
    """Makes plain values of the plan and its input; None: no job was placed."""


@dataclass(frozen=True)
class View:
    """The jobs as a round reads them."""

    now: float
    jobs: Sequence[SlurmJob]
    reservations: Sequence[SlurmReservation]
    gated: Sequence[GatedJob]
    parked: Sequence[GatedJob]  # jobs behind the closed gate, without ``outdated``
    released: Sequence[GatedJob]
    split: frozenset[int]  # arrays of several records
    gate_held: bool  # the gate was held; else a job that was read as parked may run by now
    outdated: frozenset[str]
    """Jobs that the start monitor has parked since, so that their records are old, jobs that their
    owners have just changed, and jobs whose own record could not be looked up."""
    complete: bool  # every record was read; else some GPUs and CPUs in use are not known
    all_ids: bool  # the id of every record is known


def is_full(cluster: Cluster, assignments: Sequence[Assignment]) -> bool:
    """Whether no GPU is free once these jobs have started."""
    taken = sum(len(slots) for one in assignments for slots in one.slots)
    return not cluster.free.sum() > taken
