"""Return of moved jobs: a job that comes back from its requeue goes before all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.power import PowerState
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.power_budget import PowerBudget
from slurm_gpu_aware.planning.timeline import as_running, take

__all__ = ["place_moved"]

_FIRST = 1e15  # above any priority of Slurm with its partition's tier


def place_moved(
    targets: Mapping[str, Assignment],
    queue: Sequence[Request],
    cluster: Cluster,
    settings: PlanSettings,
    now: float,
    *,
    policy_options: Mapping[str, Mapping[str, Any]] | None = None,
    power: PowerState | None = None,
) -> tuple[tuple[Assignment, ...], list[Request], Cluster]:
    """Place the jobs of a queue that are on a move, before all others.

    Each gets the GPUs that were chosen for it, or if these are not free as many of the best that
    are now. One that fits nowhere goes to the front of the queue.

    Returns the assignments, the rest of the queue, and the cluster for it.

    Parameters
    ----------
    targets : job ID -> the assignment of its `Move`.
    power : as of `plan_round`. A job that lacks power goes to the front of the queue, too.
    """
    dispatcher = Dispatcher(settings, policy_options, now)
    budget = PowerBudget.of(cluster, settings, power)
    cluster = (cluster if budget is None else budget.cluster).copy()
    running = list(cluster.running)
    placed: list[Assignment] = []
    rest: list[Request] = []
    for request in queue:
        target = targets.get(request.job_id)
        if target is None:
            rest.append(request)
            continue
        clock_mhz = settings.clock_mhz(request)
        if budget is not None:
            clock_mhz, request = budget.clock_mhz(request), budget.needing(request)
        gpus = sum(map(len, target.slots))
        sized = request.resized(gpus) if gpus in request.sizes else request
        chosen = _at(target, sized, cluster, dispatcher)
        if chosen is None:
            rest.append(_first(request, target, gpus))
            continue
        held = take(cluster, request, chosen)
        running.append(as_running(request, chosen, now, held))
        placed.append(replace(chosen, clock_mhz=clock_mhz))
    return tuple(placed), rest, replace(cluster, running=tuple(running), power_w=None)


def _first(request: Request, target: Assignment, gpus: int) -> Request:
    """The request at the front of the queue, with no fewer GPUs than the job had."""
    least = int((target.why.get("moved") or {}).get("gpus_before", gpus))
    if least in request.sizes:
        sizes = tuple(size for size in request.sizes if size >= least)
        request = replace(request.resized(least), sizes=sizes)
    return replace(request, priority=_FIRST + request.priority)


def _at(
    target: Assignment, request: Request, cluster: Cluster, dispatcher: Dispatcher
) -> Assignment | None:
    """The job on the GPUs of its move, else on the best that are free; None: nowhere."""
    only = np.zeros_like(cluster.free)
    for node, slots in target.gpus:
        only[node, list(slots)] = True
    there = dispatcher.could_place(request, replace(cluster, free=cluster.free & only))
    if there is not None:
        return replace(there, why={**there.why, **target.why})
    other = dispatcher.could_place(request, cluster)
    if other is None:
        return None
    summary = f"moved, but its new GPUs were no longer free; {other.why.get('summary', '')}"
    return replace(other, why={**other.why, "moved": target.why.get("moved"), "summary": summary})
