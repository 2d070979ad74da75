"""Jobs on a move: what is kept for them, and their return before all others."""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.features.moves.declared import HAD_GPUS, Moved, Returned
from slurm_gpu_aware.features.moves.movable import RETURNING, Move
from slurm_gpu_aware.features.power.power_budget import POWER, PowerBudget, budget_of
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.timeline import (
    Timeline,
    as_running,
    keep_least,
    left_behind,
    take,
)

_FIRST = 1e15  # above any priority of Slurm with its partition's tier


def after_move(cluster: Cluster, move: Move, now: float) -> Cluster:
    """The cluster with the job on its new GPUs, and the old ones free."""
    one, target = move.of, move.assignment
    after = Timeline([one.job], now).at(cluster, math.inf)
    job = as_running(move.request, target, now, take(after, move.request, target))
    others = (other for other in cluster.running if other.job_id != job.job_id)
    return replace(after, running=(*others, job))


def begun(one: Round, moves: Iterable[Move]) -> Round:
    """The round in which moves begin, for its starts.

    The new GPUs are taken, the old ones become free within the time of the restart, and
    `Move.power_w` is kept.
    """
    for move in moves:
        after, job = after_move(one.cluster, move, one.now), move.of.job
        here = one.cluster.copy()
        keep_least(here, here, after, slice(None))
        leaves = f"({job.job_id} leaves)"
        left = left_behind(here, after, leaves, one.now + move.of.restart_s)
        one = replace(one, cluster=replace(here, running=(*after.running, left)))
        for job_id, gpus, power_w in (
            (move.job_id, move.request.gpus, move.power_w),
            (leaves, len(left.gpus), 0.0),
        ):
            if (budget := budget_of(one)) is not None:
                one = one.put(POWER, budget.with_job(job_id, gpus, power_w, starts=False))
    return one


def place_moved(one: Round) -> Round:
    """Place the jobs of the queue that are on a move, before all others.

    Each gets the GPUs that were chosen for it, or if these are not free as many of the best that
    are now. One that fits nowhere, or for which there is no power, goes to the front of the queue,
    with as many GPUs as it had, or fewer if it shrinks. One that shrinks comes back with as many as
    it had if these are free and no other job waits any more. One that now asks for more than that
    or the move gave it waits like any other.
    """
    targets, settings = one.get(RETURNING), one.settings
    dispatcher = Dispatcher(settings, one.options, one.now)
    placed: list[Assignment] = []
    rest: list[Request] = []
    others = any(request.job_id not in targets for request in one.queue)
    for request in one.queue:
        target = targets.get(request.job_id)
        if target is None:
            rest.append(request)
            continue
        budget = budget_of(one)
        here = (one.cluster if budget is None else budget.cluster).copy()
        if not others:
            target = _with_all(target, request, here, dispatcher, budget)
        gpus = sum(map(len, target.slots))
        before = _gpus_before(target, gpus)
        if request.least_gpus > max(gpus, before):
            rest.append(request)  # its owner has asked for more meanwhile: that has no precedence
            continue
        had = min(gpus, before)
        request = request.put(HAD_GPUS, had).from_size(had)
        sized = request.resized(gpus) if gpus in request.sizes else request
        clock_mhz = settings.clock_mhz(sized)
        if budget is not None:
            clock_mhz, sized = budget.clock_mhz(sized), budget.needing(sized)
        other = gpus != had
        fits = here.leaves(sized.power_w) or not other
        chosen = _at(target, sized, here, dispatcher) if fits else None
        if chosen is None:
            rest.append(replace(request, priority=_FIRST + request.priority))
            continue
        job = as_running(sized, chosen, one.now, take(here, sized, chosen))
        if budget is not None:
            power = budget.with_job(job.job_id, sized.gpus, sized.power_w, starts=True)
            one = one.put(POWER, power)
        placed.append(replace(chosen, clock_mhz=clock_mhz))
        after = replace(here, running=(*one.cluster.running, job), power_w=None)
        one = replace(one, cluster=after)
    return replace(one, first=(*placed, *one.first), queue=rest)


def _gpus_before(target: Assignment, gpus: int) -> int:
    """GPUs that a job had before its move; ``gpus``: those of its target."""
    moved = target.why.of(Moved)
    return gpus if moved is None or moved.gpus_before is None else moved.gpus_before


def _with_all(
    target: Assignment,
    request: Request,
    cluster: Cluster,
    dispatcher: Dispatcher,
    budget: PowerBudget | None,
) -> Assignment:
    """The GPUs of a job that shrinks, with as many as it had; the target if it does not, or cannot.

    The jobs for which it gives them back may have been cancelled since.
    """
    gpus = sum(map(len, target.slots))
    before = _gpus_before(target, gpus)
    if before <= gpus or before not in request.sizes:
        return target
    sized = request.resized(before)
    sized = sized if budget is None else budget.needing(sized)
    found = dispatcher.could_place(sized, cluster) if cluster.leaves(sized.power_w) else None
    if found is None:
        return target
    return replace(found, why=Facts((Returned(before),)))


def _at(
    target: Assignment, request: Request, cluster: Cluster, dispatcher: Dispatcher
) -> Assignment | None:
    """The job on the GPUs of its move, else on the best that are free; None: nowhere."""
    only = np.zeros_like(cluster.free)
    for node, slots in target.gpus:
        only[node, list(slots)] = True
    there = dispatcher.could_place(request, replace(cluster, free=cluster.free & only))
    if there is not None:
        return replace(there, why=target.why.also(*there.why))
    other = dispatcher.could_place(request, cluster)
    if other is None:
        return None
    returned = Returned(move=target.why.of(Moved))
    return replace(other, why=Facts((returned, *other.why)))
