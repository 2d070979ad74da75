"""Stages of a round, and how they make its plan. Pure functions.

A stage has a step before the jobs of the queue are placed and one after it; the steps after it run
in reverse order. A stage takes jobs out of the queue, or changes the requests and the cluster that
the placement finds, and adds to its plan. Selector, simulator and the replay of a record run the
stages of one list, `features.FEATURES`; without any stage the jobs are placed as they ask.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MethodType
from typing import Any, ClassVar, Protocol

from slurm_gpu_aware.model.facets import Facet, Section, changed
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.planning.postponing import kept_apart
from slurm_gpu_aware.planning.prefix import in_slurm_order
from slurm_gpu_aware.planning.round import place_round


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
    optional: ClassVar[bool] = False  # The round goes on without the stage if that fails.
    sees_running: ClassVar[bool] = False
    """It reads ``cluster.running``; a simulation lists these jobs only where something does."""

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
        return changed(one, plan=kept_apart(one.plan, placement.queue, placement.cluster))


class _Placement(Stage):
    """The jobs of the queue are placed."""

    name = "placement"

    def before(self, one: Round) -> Round:
        queue = one.queue if one.ordered else in_slurm_order(one.queue)
        found = place_round(changed(one, queue=queue))
        placed = found.plan
        plan = changed(one.plan, assignments=placed.assignments, waiting=placed.waiting)
        return changed(one, queue=(*queue, *one.aside), plan=plan, placement=found)


def steps(stages: Sequence[Stage]) -> Sequence[tuple[Stage, Step]]:
    """The steps of a round in their order, each with its stage; the placement is one of them."""
    return _steps(tuple(stages))


@lru_cache(maxsize=16)
def _steps(stages: tuple[Stage, ...]) -> Sequence[tuple[Stage, Step]]:
    whole = (_SlurmsChoice(), *stages, _Placement())
    found = [(one, one.before, Stage.before) for one in whole]
    found += [(one, one.after, Stage.after) for one in reversed(whole)]
    # A step without work costs a call in each round.
    return [(one, step) for one, step, none in found if step != MethodType(none, one)]


@dataclass(frozen=True)
class World:
    """What stages are told of the site, or of its simulation: a value for each of their inputs."""

    sections: Mapping[type, Any] = field(default_factory=dict)
    """Settings of features, by their types; an absent one has its defaults."""
    inputs: Mapping[Facet[Any], Any] = field(default_factory=dict)
    """All others; what a round knows nothing of is told as empty."""


def told(one: Round, stages: Sequence[Stage], world: World) -> Round:
    """The round with what its stages ask for. Raises LookupError if the world lacks an input."""
    for facet, name in ((facet, stage.name) for stage in stages for facet in stage.inputs):
        if isinstance(facet.empty, Section):
            one = one.put(facet, world.sections.get(facet.kind, facet.empty))
        elif facet in world.inputs:
            one = one.put(facet, world.inputs[facet])
        else:
            raise LookupError(
                f"the world of this round says nothing of {facet.name!r}, an input of {name}:"
                " a Live finds it on the site, and a simulated side tells it"
            )
    return one


def plan_stages(one: Round, stages: Sequence[Stage]) -> Plan:
    """The plan of a round by its stages."""
    for _, step in steps(stages):
        one = step(one)
    return one.whole_plan
