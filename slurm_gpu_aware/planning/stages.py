"""Stages of a round, and how they make its plan. Pure functions.

A stage has a step before the jobs of the queue are placed and one after it; the steps after it run
in reverse order. A stage takes jobs out of the queue, or changes the requests and the cluster that
the placement finds, and adds to its plan. Selector, simulator and the replay of a record run the
stages of one list, `features.FEATURES`; without any stage the jobs are placed as they ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facets import Facet, Faceted, Section
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.apart import kept_apart
from slurm_gpu_aware.planning.dispatcher import Placement
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.prefix import in_slurm_order
from slurm_gpu_aware.planning.round import place_round


@dataclass(frozen=True)
class Round(Faceted):
    """Input of a round, and what its stages have found so far. No stage changes a value in place.

    Times are seconds on one clock.
    """

    queue: Sequence[Request]
    """Jobs that may start, in any order."""
    cluster: Cluster
    settings: PlanSettings
    now: float
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policy -> its options."""
    explain: bool = True
    """As of `place_round`."""
    ordered: bool = False
    """A stage has put the queue in the order in which jobs start; else Slurm's order counts."""
    behind: Mapping[str, int] = field(default_factory=dict)
    """Job -> its turn among the jobs behind the first one that waits; empty: that of the queue."""
    aside: tuple[Request, ...] = ()
    """Jobs that a stage has taken out of the queue and places after it."""
    first: tuple[Assignment, ...] = ()
    """Starts of jobs that stages have taken out of the queue, and placed on the cluster."""
    grows: bool = False
    """A stage gives jobs what is spare after the placement."""
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


class Step(Protocol):
    """One step of a round."""

    def __call__(self, one: Round, /) -> Round:
        """The round after it."""


class Stage:
    """A part of a round beside the placement; a step that it does not have changes nothing."""

    name: ClassVar[str]
    inputs: ClassVar[tuple[Facet[Any], ...]] = ()
    """What it must be told of the world; a record of a round holds it. See `told`."""
    reads: ClassVar[tuple[Facet[Any], ...]] = ()
    """What it reads of requests; a record of a round holds it."""
    optional: ClassVar[bool] = False
    """The round goes on without the stage if that fails."""
    passes: ClassVar[bool] = False
    """Jobs may start although others that stand before them wait, without backfill, too."""

    def before(self, one: Round) -> Round:
        """The round as the placement finds it."""
        return one

    def after(self, one: Round) -> Round:
        """The round with what is added to its plan."""
        return one


class _SlurmsChoice(Stage):
    """Jobs whose GPUs Slurm chooses are kept off nodes with exact GPUs, by the sizes in the end."""

    name = "GPUs that Slurm chooses"

    def after(self, one: Round) -> Round:
        placement = one.placement
        if placement is None:
            return one
        return replace(one, plan=kept_apart(one.plan, placement.queue, placement.cluster))


class _Placement(Stage):
    """The jobs of the queue are placed."""

    name = "placement"

    def before(self, one: Round) -> Round:
        queue = one.queue if one.ordered else in_slurm_order(one.queue)
        found = place_round(
            queue,
            one.cluster,
            one.settings,
            one.now,
            policy_options=one.options,
            explain=one.explain,
            grows=one.grows,
            behind=one.behind,
        )
        placed = found.plan
        plan = replace(one.plan, assignments=placed.assignments, waiting=placed.waiting)
        return replace(one, queue=(*queue, *one.aside), plan=plan, placement=found)


def steps(stages: Sequence[Stage]) -> list[tuple[Stage, Step]]:
    """The steps of a round in their order, each with its stage; the placement is one of them."""
    whole = (_SlurmsChoice(), *stages, _Placement())
    before: list[tuple[Stage, Step]] = [(stage, stage.before) for stage in whole]
    return [*before, *((stage, stage.after) for stage in reversed(whole))]


@dataclass(frozen=True)
class World:
    """What stages are told of the site, or of its simulation: a value for each of their inputs."""

    sections: Mapping[type, Any] = field(default_factory=dict)
    """Settings of features, by their types; an absent one has its defaults."""
    inputs: Mapping[Facet[Any], Any] = field(default_factory=dict)
    """All others; what a round knows nothing of is told as empty."""


def told(one: Round, stages: Sequence[Stage], world: World) -> Round:
    """The round with what its stages ask for. Raises LookupError if the world lacks an input."""
    for facet in (facet for stage in stages for facet in stage.inputs):
        if isinstance(facet.empty, Section):
            one = one.put(facet, world.sections.get(facet.kind, facet.empty))
        elif facet in world.inputs:
            one = one.put(facet, world.inputs[facet])
        else:
            raise LookupError(f"the world of this round says nothing of {facet.name!r}")
    return one


def plan_stages(one: Round, stages: Sequence[Stage]) -> Plan:
    """The plan of a round by its stages."""
    for _, step in steps(stages):
        one = step(one)
    return one.whole_plan
