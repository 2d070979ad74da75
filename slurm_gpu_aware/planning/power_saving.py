"""Nodes that sleep are woken only for jobs that fit on no others, and as few as will do.

Slurm's own scheduler gives such nodes the highest weight, so it takes them last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request

__all__ = ["place_awake_first"]

Ask = Callable[[Request], Assignment | None]


def place_awake_first(request: Request, cluster: Cluster, ask: Ask) -> Assignment | None:
    """Where ``ask`` places a request, on nodes that are awake as far as possible.

    Sleeping nodes are those of the answer that ``ask`` gives if all may be woken; of these the
    first few that the request needs beside nodes that are awake. ``why["woken"]`` names them.
    """
    asleep = cluster.asleep
    if asleep is None:
        return ask(request)
    found = _waking_few(request, cluster.free, asleep, ask)
    if found is None or not asleep[list(found.nodes)].any():
        return found
    names = [cluster.nodes[node] for node in found.nodes if asleep[node]]
    return replace(found, why={**found.why, "woken": names})


def _waking_few(
    request: Request, gpus: BoolArray, asleep: BoolArray, ask: Ask
) -> Assignment | None:
    """``gpus``: (N, W) which are free; ``asleep``: (N,)."""
    if asleep[list(request.required)].any():
        return ask(request)
    allowed = ~asleep if request.eligible is None else request.eligible & ~asleep
    free = int(np.count_nonzero(gpus[allowed]))
    found = ask(replace(request, eligible=allowed)) if free >= request.gpus else None
    if found is not None:
        return found
    found = ask(request)
    woken = [node for node in found.nodes if asleep[node]] if found is not None else []
    low, high = 0, len(woken)  # too few, enough
    while free and high - low > 1:
        middle = (low + high) // 2
        fewer = ask(replace(request, eligible=_with(allowed, woken[:middle])))
        if fewer is None:
            low = middle
        else:
            high, found = middle, fewer
    return found


def _with(allowed: BoolArray, nodes: list[int]) -> BoolArray:
    result = allowed.copy()
    result[nodes] = True
    return result
