"""Stages of a round, the one list of them, and a round's input. Pure functions.

A stage has a step before the jobs of the queue are placed and one after it; the steps after it run
in reverse order. A stage takes jobs out of the queue, or changes the cluster and the power that the
placement finds, and adds to its plan. Selector, simulator and the replay of a record run the same
list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from slurm_gpu_aware.features.due_dates.queue import accounted, next_growth
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.moves.moved import begun, place_moved
from slurm_gpu_aware.features.moves.planning import plan_moves
from slurm_gpu_aware.features.moves.settings import MoveSettings
from slurm_gpu_aware.features.power.state import PowerState
from slurm_gpu_aware.features.shards.sharing import SplitQueue, split_queue, with_shards
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.round import plan_round


@dataclass(frozen=True)
class Moving:
    """What a round that looks for moves knows of them."""

    settings: MoveSettings
    movable: Sequence[Movable] = ()
    """All running jobs that allow moves."""
    recent: Sequence[tuple[float, str]] = ()
    """(time, user) of moves of the site that began."""
    busy: frozenset[int] = frozenset()
    """Nodes of moves that have not finished."""


@dataclass(frozen=True)
class Round:
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
    power: PowerState | None = None
    """None: there is no limit, and no clock changes."""
    returning: Mapping[str, Assignment] = field(default_factory=dict)
    """Job of the queue that is on a move -> the GPUs that were chosen for it."""
    moving: Moving | None = None
    """None: this round looks for no moves."""
    explain: bool = True
    """As of `plan_round`."""
    plan: Plan = field(default_factory=lambda: Plan((), ()))
    split: SplitQueue | None = None
    """The queue without jobs that share GPUs; None: no job does."""
    returned: tuple[Assignment, ...] = ()
    """Jobs that are back from a move."""

    @property
    def whole_plan(self) -> Plan:
        """The plan after the last step."""
        if not self.returned:
            return self.plan
        return replace(self.plan, assignments=(*self.returned, *self.plan.assignments))


class Step(Protocol):
    """One step of a round."""

    def __call__(self, one: Round, /) -> Round:
        """The round after it."""


class Stage:
    """A part of a round beside the placement; a step that it does not have changes nothing."""

    name: str

    def before(self, one: Round) -> Round:
        """The round as the placement finds it."""
        return one

    def after(self, one: Round) -> Round:
        """The round with what is added to its plan."""
        return one


class Sharing(Stage):
    """Jobs that ask for shards fill used GPUs (`planning.sharing`)."""

    name = "shards"

    def before(self, one: Round) -> Round:
        split = split_queue(one.queue, one.cluster)
        if split.queue is one.queue:
            return one
        return replace(one, queue=split.queue, cluster=split.cluster, split=split)

    def after(self, one: Round) -> Round:
        if one.split is None:
            return one
        there = {request.job_id for request in one.queue}
        sharing = [request for request in one.split.sharing if request.job_id in there]
        given = one.split, one.cluster, one.settings, one.now
        return replace(one, plan=with_shards(one.plan, *given, sharing))


class Returns(Stage):
    """Jobs on a move get the GPUs that were kept for them, before all others."""

    name = "moves under way"

    def before(self, one: Round) -> Round:
        if not one.returning:
            return one
        returned, queue, cluster, power = place_moved(
            one.returning,
            one.queue,
            one.cluster,
            one.settings,
            one.now,
            policy_options=one.options,
            power=one.power,
        )
        return replace(one, returned=returned, queue=queue, cluster=cluster, power=power)


class Moves(Stage):
    """Running jobs that move to better GPUs, and what they leave to the starts."""

    name = "moves"

    def before(self, one: Round) -> Round:
        if (moving := one.moving) is None:
            return one
        movable = accounted(moving.movable, one.cluster, one.now)
        wake_s = next_growth(movable, one.now)
        moves = plan_moves(
            movable,
            one.queue,
            one.cluster,
            one.settings,
            moving.settings,
            one.now,
            recent=moving.recent,
            busy=moving.busy,
            policy_options=one.options,
            power=one.power,
        )
        cluster, power = begun(one.cluster, moves, one.settings, one.now, one.power)
        plan = replace(one.plan, moves=moves, wake_s=min(wake_s, one.plan.wake_s))
        return replace(one, cluster=cluster, power=power, plan=plan)


PLACEMENT = "placement"
STAGES: tuple[Stage, ...] = (Sharing(), Returns(), Moves())
"""The order counts: shards take nothing from moves, and power is counted after both."""


def steps(stages: Sequence[Stage] = STAGES) -> list[tuple[str, Step]]:
    """(Name of the stage, step) in the order in which a round takes them."""
    before = [(stage.name, stage.before) for stage in stages]
    after = [(stage.name, stage.after) for stage in reversed(stages)]
    return [*before, (PLACEMENT, _placed), *after]


def plan_stages(one: Round, stages: Sequence[Stage] = STAGES) -> Plan:
    """The plan of a round by all its stages."""
    for _, step in steps(stages):
        one = step(one)
    return one.whole_plan


def _placed(one: Round) -> Round:
    given = one.queue, one.cluster, one.settings, one.now
    plan = plan_round(*given, policy_options=one.options, explain=one.explain, power=one.power)
    plan = replace(plan, moves=one.plan.moves, wake_s=min(plan.wake_s, one.plan.wake_s))
    return replace(one, plan=plan, queue=one.queue if one.split is None else one.split.all)
