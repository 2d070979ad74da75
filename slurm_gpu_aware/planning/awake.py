"""Nodes that sleep are woken only for jobs that fit on no others, as by Slurm's own scheduler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.cluster import Cluster
from slurm_gpu_aware.request import Request

__all__ = ["on_awake_nodes", "told_who_wakes"]


def on_awake_nodes(request: Request, cluster: Cluster) -> Request | None:
    """The request for the nodes that are awake.

    None: that is all of them, or it names one that is not, or too few GPUs are free there.
    """
    asleep = cluster.asleep
    if asleep is None or asleep[list(request.required)].any():
        return None
    allowed = ~asleep if request.eligible is None else request.eligible & ~asleep
    if np.count_nonzero(cluster.free[allowed]) < request.gpus:
        return None
    return replace(request, eligible=allowed)


def told_who_wakes(found: Assignment, cluster: Cluster) -> Assignment:
    """The assignment with the nodes that must be woken for it in its account."""
    if cluster.asleep is None:
        return found
    names = [cluster.nodes[node] for node in found.nodes if cluster.asleep[node]]
    return replace(found, why={**found.why, "woken": names}) if names else found
