"""Settings of a round, what its stages work on, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpus
from slurm_gpu_aware.model.facets import Faceted
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.placement.registry import DEFAULT

if TYPE_CHECKING:
    from slurm_gpu_aware.planning.dispatcher import Placement


@dataclass(frozen=True)
class PlanSettings:
    """Settings of a site."""

    policy: str = DEFAULT
    """Default policy; a request may name another."""
    classes: tuple[str, ...] = ("A", "B", "C")
    """Most sensitive first: the order of placement in the guaranteed prefix."""
    class_clock_mhz: Mapping[str, int] = field(default_factory=dict)
    """Class -> SM clock for requests without one or with ``auto``; absent: default clock."""
    max_clock_mhz: int | None = None
    """SM clock of ``freq=max``; None: the default clock."""
    backfill: bool = True
    """Backfill behind the first job that does not fit."""
    reservations: int = 1
    """Most jobs that do not fit and have a reservation, which no job behind them delays. 1: the
    first one only, as in EASY."""
    backfill_depth: int = 1000
    """Most jobs behind the head that backfill tries."""
    auto_clocks: bool = False
    """Under a power limit a round chooses the clock of requests that name none, too."""
    guarded: bool = False
    """Jobs that the gate does not hold wait beside the queue, so Slurm holds the GPUs of the head.
    No job is backfilled on its nodes, as Slurm would have to give these GPUs free for that."""
    due_by_pressure: bool = False
    """Neighbours in Slurm's order with due dates exchange places (`due_dates.in_order`)."""

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


@dataclass(frozen=True)
class Waiting:
    """A job that stays parked, and the reason."""

    job_id: str
    reason: str
    """One sentence for the user."""
    shadow_start_s: float | None = None
    """Latest start by the shadow reservation; None: the job has no reservation."""
    reserved: Gpus = ()
    """GPUs of the shadow reservation."""
    kept: Kept | None = None
    """Reservation of a job behind the first one that waits."""
    infeasible: bool = False
    """The job has no place even on the empty cluster of the nodes that are usable now."""
    by_policy: bool = False
    """An option of the policy is the reason; Slurm does not keep this option."""
    failed: bool = False
    """Its policy cannot be used."""
    postponement: Postponement | None = None
    """GPUs that fit are free, but the job ends sooner on a set that frees up later. A round should
    consider it again at its ``start_s``, and be given it in the request."""

    @property
    def postponed(self) -> bool:
        """Whether the job waits by its own choice."""
        return self.postponement is not None


@dataclass(frozen=True)
class ClockChange:
    """A new SM clock for all GPUs of a running job."""

    job_id: str
    clock_mhz: int | None
    """None: the default clock."""
    power_w: float
    """Power of the job at the new clock."""


class Note(NamedTuple):
    """An event of a job for the ledger, which holds the first of each kind."""

    job_id: str
    kind: str
    """One of the folder's ``events.py``."""
    detail: Mapping[str, Any]
    """Plain values."""


@dataclass(frozen=True)
class Plan(Faceted):
    """Outcome of a round. Every request of the queue is in exactly one of the first two lists."""

    assignments: tuple[Assignment, ...]
    waiting: tuple[Waiting, ...]
    clocks: tuple[ClockChange, ...] = ()
    """New clocks of running jobs: first those that save power, then those that take it."""
    wake_s: float = math.inf
    """When a job that starts or runs should grow; a round should run then, on the clock of
    ``now``."""
    moved: tuple[Assignment, ...] = ()
    """New GPUs of running jobs that begin to move, before the starts."""
    notes: tuple[Note, ...] = ()
    """What the ledger is told of jobs."""


@dataclass(frozen=True)
class Round(Faceted):
    """Input of a round, and what its stages have found so far. No stage changes a value in place.

    Times are seconds on one clock.
    """

    queue: Sequence[Request]
    """Jobs that may start, in any order."""
    cluster: Cluster
    """The snapshot; ``running`` has the ends for the shadow."""
    settings: PlanSettings
    now: float
    """On the clock of ``RunningJob.end_s``."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policy -> its options; a request's own ones override them."""
    explain: bool = True
    """Find the reasons of jobs that wait, and infeasible ones. A simulation, in which all jobs fit
    on the idle cluster, asks for neither: that takes longer than the decisions."""
    ordered: bool = False
    """A stage has put the queue in the order in which jobs start; else Slurm's order counts."""
    behind: Mapping[str, int] = field(default_factory=dict)
    """Job -> its turn among the jobs behind the first one that waits, in which backfill tries them;
    empty: that of the queue."""
    aside: tuple[Request, ...] = ()
    """Jobs that a stage has taken out of the queue and places after it."""
    first: tuple[Assignment, ...] = ()
    """Starts of jobs that stages have taken out of the queue, and placed on the cluster."""
    grows: bool = False
    """A stage gives jobs what is spare after the placement, so the head gets a reservation in any
    case."""
    plan: Plan = field(default_factory=lambda: Plan((), ()))
    placement: Placement | None = None
    """None: the queue has not been placed yet."""

    @property
    def whole_plan(self) -> Plan:
        """The plan after the last step."""
        if not self.first:
            return self.plan
        return replace(self.plan, assignments=(*self.first, *self.plan.assignments))

    def only(self, queue: Sequence[Request]) -> Round:
        """The round with some jobs of its queue, without what was decided of the others."""
        if len(queue) == len(self.queue):
            return replace(self, queue=queue)
        there = {request.job_id for request in queue}
        plan, placement = self.plan, self.placement
        starts = tuple(one for one in plan.assignments if one.job_id in there)
        waits = tuple(one for one in plan.waiting if one.job_id in there)
        notes = tuple(one for one in plan.notes if one.job_id in there)
        if placement is not None:
            started = [one for one in placement.started if one.request.job_id in there]
            placement = replace(placement, started=started)
        plan = replace(plan, assignments=starts, waiting=waits, notes=notes)
        return replace(self, queue=queue, plan=plan, placement=placement)
