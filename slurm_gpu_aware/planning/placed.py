"""A round: its input, what its stages have found so far, and the placement of its queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.facets import Faceted
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import Plan, PlanSettings


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
    cluster: Cluster  # The cluster as the placement found it.
    started: Sequence[Started]  # The jobs of ``plan.assignments``.
    spare: Cluster
    """The cluster after the placement, without what a waiting job can use, now or when the first of
    them starts."""
    dispatcher: Dispatcher


@dataclass(frozen=True)
class Round(Faceted):
    """Input of a round, and what its stages have found so far. No stage changes a value in place.

    Times are seconds on one clock.
    """

    queue: Sequence[Request]  # Jobs that may start, in any order.
    cluster: Cluster  # The snapshot; ``running`` has the ends for the shadow.
    settings: PlanSettings
    now: float  # On the clock of ``RunningJob.end_s``.
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
    placement: Placement | None = None  # None: the queue has not been placed yet.

    @property
    def whole_plan(self) -> Plan:
        """The plan after the last step."""
        if not self.first:
            return self.plan
        return replace(self.plan, assignments=(*self.first, *self.plan.assignments))

    def only(self, queue: Sequence[Request]) -> Self:
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
