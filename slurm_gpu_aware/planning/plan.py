"""Settings of a round and its outcome."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Gpus
from slurm_gpu_aware.model.facets import Faceted
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.placement.policy import DEFAULT


@dataclass(frozen=True)
class PlanSettings:
    """Settings of a site."""

    policy: str = DEFAULT  # Default policy; a request may name another.
    classes: tuple[str, ...] = ("A", "B", "C")
    """Most sensitive first: the order of placement in the guaranteed prefix."""
    class_clock_mhz: Mapping[str, int] = field(default_factory=dict)
    """Class -> SM clock for requests without one or with ``auto``; absent: default clock."""
    max_clock_mhz: int | None = None  # SM clock of ``freq=max``; None: the default clock.
    backfill: bool = True  # Backfill behind the first job that does not fit.
    reservations: int = 1
    """Most jobs that do not fit and have a reservation, which no job behind them delays. 1: the
    first one only, as in EASY."""
    backfill_depth: int = 1000  # Most jobs behind the head that backfill tries.
    auto_clocks: bool = False
    """Under a power limit a round chooses the clock of requests that name none, too."""
    guarded: bool = False
    """Jobs that the gate does not hold, and that need a part of a node, wait beside the queue, so
    Slurm holds the GPUs of the head. No job is backfilled on its nodes, as Slurm would have to give
    these GPUs free for that."""
    guarded_core: bool = False
    """Such jobs may be due at any time, of whole nodes, too, against which a core is held: no job
    that leaves none is backfilled on the head's nodes, nor one that Slurm places, which may not
    start there after all. Priorities say nothing: users change those of their jobs in between."""
    due_order: str = "slurm"
    """How neighbours in Slurm's order with due dates exchange places (`due_dates.in_order`)."""

    def frees_clock(self, asked: str | int | None) -> bool:
        """Say whether a round under a power limit may choose the clock; ``asked``: ``freq``."""
        return asked == "auto" or (asked is None and self.auto_clocks)

    def clock_mhz(self, request: Request) -> int | None:
        """Return the SM clock to lock for a request, MHz; None: the default clock.

        ``auto`` or None: the clock of the job's class; an unknown word: the default clock.
        """
        clock = request.clock
        if clock is None or clock == "auto":
            return self.class_clock_mhz.get(request.app_class)
        if clock == "max":
            return self.max_clock_mhz
        return int(clock) if str(clock).isascii() and str(clock).isdigit() else None


class Kept(NamedTuple):
    """What no job behind a waiting job delays; it may itself start earlier or later than that."""

    start_s: float
    gpus: Gpus


class Guarded(NamedTuple):
    """What is held of a node for the first job that waits."""

    gpus: int
    free: int  # GPUs of these that no job holds.
    every: bool  # They are all GPUs of the node.
    cpus: int | None  # CPUs, at least one for each GPU; None: the whole node.


@dataclass(frozen=True)
class Waiting:
    """A job that stays parked, and the reason."""

    job_id: str
    reason: str  # One sentence for the user.
    turn: Literal["next", "behind"] | None = None
    """Its turn as the reason: the job is next in line (`NEXT`), or others come before it."""
    shadow_start_s: float | None = None
    """Latest start by the shadow reservation; None: the job has no reservation."""
    reserved: Gpus = ()  # GPUs of the shadow reservation.
    held_up: Gpus = ()  # On these it would start now, but for jobs without GPUs that passed it.
    kept: Kept | None = None  # Reservation of a job behind the first one that waits.
    infeasible: bool = False
    """The job has no place even on the empty cluster of the nodes that are usable now."""
    by_policy: bool = False
    """An option of the policy is the reason; Slurm does not keep this option."""
    failed: bool = False  # Its policy cannot be used.
    postponement: Postponement | None = None
    """GPUs that fit are free, but the job ends sooner on a set that frees up later. A round should
    consider it again at its ``start_s``, and be given it in the request."""

    @property
    def postponed(self) -> bool:
        """Whether the job waits by its own choice."""
        return self.postponement is not None


NEXT = "next in line: "  # Start of the reason of a job whose turn is next.


def waits_behind(job: str) -> str:
    """The reason of a job that waits for its turn, behind a job."""
    return f"waits for its turn behind job {job}"


@dataclass(frozen=True)
class ClockChange:
    """A new SM clock for all GPUs of a running job."""

    job_id: str
    clock_mhz: int | None  # None: the default clock.
    power_w: float  # Power of the job at the new clock.


class Note(NamedTuple):
    """An event of a job for the ledger, which holds the first of each kind."""

    job_id: str
    kind: str  # One of the folder's ``declared.py``.
    detail: Mapping[str, Any]  # Plain values.


@dataclass(frozen=True)
class Plan(Faceted):
    """Outcome of a round. Every request of the queue is in exactly one of the first two lists."""

    assignments: tuple[Assignment, ...]
    waiting: tuple[Waiting, ...]
    clocks: tuple[ClockChange, ...] = ()
    """New clocks of running jobs: first those that save power, then those that take it."""
    wake_s: float = math.inf
    """When a round should run, on the clock of ``now``. A stage that still wants one says so in
    each round."""
    moved: tuple[Assignment, ...] = ()
    """New GPUs of running jobs that begin to move, before the starts."""
    notes: tuple[Note, ...] = ()  # What the ledger is told of jobs.
