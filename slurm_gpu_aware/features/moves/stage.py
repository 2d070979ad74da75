"""Stages of a round: jobs that are back from a move, and running jobs that begin to move."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.queue import accounted, next_growth
from slurm_gpu_aware.features.moves.movable import MOVES, MOVING, RETURNING
from slurm_gpu_aware.features.moves.moved import begun, place_moved
from slurm_gpu_aware.features.moves.planning import plan_moves
from slurm_gpu_aware.features.moves.settings import HAD_GPUS
from slurm_gpu_aware.features.power.power_budget import POWER
from slurm_gpu_aware.model.size_table import TABLE, TABLES
from slurm_gpu_aware.planning.stages import Round, Stage


class Returns(Stage):
    """Jobs on a move get the GPUs that were kept for them, before all others."""

    name = "moves under way"
    inputs = (RETURNING,)

    def before(self, one: Round) -> Round:
        """The queue without them, and the cluster with them."""
        if not (targets := one.get(RETURNING)):
            return one
        returned, queue, cluster, power = place_moved(
            targets,
            one.queue,
            one.cluster,
            one.settings,
            one.now,
            policy_options=one.options,
            power=one.get(POWER),
        )
        one = replace(one, first=(*returned, *one.first), queue=queue, cluster=cluster)
        return one.put(POWER, power)


class Moves(Stage):
    """Running jobs that move to better GPUs, and what they leave to the starts."""

    name = "moves"
    reads = (DUE_DATE, HAD_GPUS, TABLE, TABLES)
    inputs = (MOVING,)
    optional = True

    def before(self, one: Round) -> Round:
        """The cluster as the moves leave it, and a plan with them."""
        if (moving := one.get(MOVING)) is None:
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
            power=one.get(POWER),
        )
        cluster, power = begun(one.cluster, moves, one.settings, one.now, one.get(POWER))
        moved = tuple(move.assignment for move in moves)
        plan = replace(one.plan, moved=moved, wake_s=min(wake_s, one.plan.wake_s))
        return replace(one, cluster=cluster, plan=plan.put(MOVES, moves)).put(POWER, power)
