"""Stages of a round: jobs that are back from a move, and running jobs that begin to move."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.queue import accounted, next_growth
from slurm_gpu_aware.features.moves.movable import MOVES, MOVING, RETURNING
from slurm_gpu_aware.features.moves.moved import begun, place_moved
from slurm_gpu_aware.features.moves.planning import plan_moves
from slurm_gpu_aware.features.moves.settings import HAD_GPUS
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.planning.plan import Round
from slurm_gpu_aware.planning.stages import Stage


class Returns(Stage):
    """Jobs on a move get the GPUs that were kept for them, before all others."""

    name = "moves under way"
    inputs = (RETURNING,)

    def before(self, one: Round) -> Round:
        """The queue without them, and the cluster with them."""
        return place_moved(one) if one.get(RETURNING) else one


class Moves(Stage):
    """Running jobs that move to better GPUs, and what they leave to the starts."""

    name = "moves"
    reads = (DUE_DATE, HAD_GPUS, TABLE)
    inputs = (MOVING,)
    optional = True

    def before(self, one: Round) -> Round:
        """The cluster as the moves leave it, and a plan with them."""
        if (moving := one.get(MOVING)) is None:
            return one
        movable = accounted(moving.movable, one.cluster, one.now)
        moves = plan_moves(one, replace(moving, movable=movable))
        moved = tuple(move.assignment for move in moves)
        wake_s = min(next_growth(movable, one.now), one.plan.wake_s)
        plan = replace(one.plan, moved=moved, wake_s=wake_s).put(MOVES, moves)
        return begun(replace(one, plan=plan), moves)
