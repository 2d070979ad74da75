"""Sizes of all jobs of a simulation by the stochastic scheduler (`sizing.sts`).

Jobs with a due date, a size table and earlier runs get what it decides, on one node each. All
others get the GPUs that they ask for, after them; those that no node has stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.features.due_dates.plan import due_work
from slurm_gpu_aware.features.due_dates.work import empirical
from slurm_gpu_aware.features.power.allocation import Sized
from slurm_gpu_aware.features.sizes.speeds import Speeds
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.sizing.afs import DueNode, Share
from slurm_gpu_aware.sizing.sts import DueJob, decide

PERIOD_S = 600.0
"""Longest time between decisions while a job waits (H; the paper gives no value)."""
LATE_COST = 10.0
"""Cost of being late with weight 1, as a multiple of the energy of the largest size in that time
(about as in the paper)."""
_LEAST_S = 1.0
"""Growth that is due earlier waits so long."""
_MODEL = "gpu"
"""All GPUs of a simulation are of one model."""


@dataclass(frozen=True)
class StsSizes:
    """A decision of the stochastic scheduler."""

    sized: Mapping[str, Sized]
    """What each job gets, at the default clock."""
    nodes: Mapping[str, int]
    """Job -> node of its GPUs."""
    wake_s: float
    """When to decide again; inf: at the next arrival or end."""


def sts_sizes(
    jobs: Sequence[ActiveJob], state: ClusterState, gpu_w: float, *, keeps: bool
) -> StsSizes:
    """Decide for all jobs that wait or run; ``keeps``: as of `decide`.

    ``gpu_w``: power of a GPU of a job without a size table.
    """
    now, width = state.clock.now, state.idle.shape[1]
    wide = [a for a in jobs if (a.size if a.placed else a.request.gpus) > width]
    others = [a for a in jobs if a not in wide]
    beside = {a.position for a in wide if a.placed is not None}
    room = state.view(beside, with_holders=False).free.sum(axis=1).tolist()
    nodes = [DueNode(_MODEL, gpus) for gpus in room]
    asked = [
        _due_job(active, width, gpu_w, now, state.settings.restart_s(active.job))
        for active in others
    ]
    decision = decide(asked, nodes, now, PERIOD_S, keeps=keeps)
    sized = {a.job.job_id: Sized(a.size if a.placed else a.request.gpus) for a in wide}
    sized |= dict.fromkeys(decision.waiting, Sized(0))
    sized |= {name: Sized(round(one.share.gpus)) for name, one in decision.jobs.items()}
    wake_s = max(decision.wake, now + _LEAST_S)
    if decision.waiting and decision.jobs:
        wake_s = min(wake_s, now + PERIOD_S)
    return StsSizes(sized, {n: one.share.node for n, one in decision.jobs.items()}, wake_s)


def _due_job(active: ActiveJob, width: int, gpu_w: float, now: float, restart_s: float) -> DueJob:
    """A job as the scheduler sees it; costs in J.

    Time for the restarts of its growth, size by size, is taken off its due date.
    """
    name, request, held = active.job.job_id, active.request, None
    if active.placed is not None:
        held = Share(active.placed.nodes[0], active.size)
    known = due_work(request, now)
    speeds = None if known is None else _within(known[1], width)
    if known is None or speeds is None or request.due is None:
        gpus = active.size if held else request.gpus
        seconds = max(min(request.expected_s, 1e9), 1.0)
        one = Speeds(np.array([float(gpus)]), np.ones(1), np.array([gpus * gpu_w]))
        work = empirical([seconds], seconds)
        return DueJob(name, math.inf, 0.0, work, {_MODEL: one}, held, movable=False)
    late = request.due.weight * LATE_COST * float(speeds.power[-1])
    movable = bool(active.job.elastic)
    if active.placed is not None:
        speeds = replace(speeds, speed=speeds.speed / active.placed.slowdown)
    steps = int(np.sum(speeds.gpus > (held.gpus if held else speeds.gpus[0])))
    due_s = request.due.due_s - (steps * restart_s if movable else 0.0)
    return DueJob(name, due_s, late, known[0], {_MODEL: speeds}, held, movable=movable)


def _within(speeds: Speeds, width: int) -> Speeds | None:
    """The sizes that one node has; None: there is none."""
    count = int(np.searchsorted(speeds.gpus, width, side="right"))
    part = slice(0, count)
    return Speeds(speeds.gpus[part], speeds.speed[part], speeds.power[part]) if count else None
