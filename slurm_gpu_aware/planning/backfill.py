"""EASY backfill: a reservation for the head of the queue, and what may run beside it.

The first job that does not fit gets a *shadow reservation*: the earliest time at which enough
GPUs, CPUs and memory are free by the running jobs' time limits, and the concrete GPUs that its own
policy picks then. A job behind it may start now if it cannot delay that: it ends before the shadow
start, or it needs nothing that the reservation needs (Lifka, "The ANL/IBM SP scheduling system",
1995, on concrete GPUs instead of counts).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.cluster import Cluster
from slurm_gpu_aware.placement.feasible import node_demand
from slurm_gpu_aware.planning.timeline import Timeline, take
from slurm_gpu_aware.request import Request

__all__ = ["Beside", "Shadow", "reserve"]


@dataclass(frozen=True, eq=False)
class Shadow:
    """The head's reservation."""

    start_s: float
    """Latest start of the head; inf if it waits for a job without a time limit."""
    assignment: Assignment
    rest: Cluster
    """The cluster at ``start_s`` with the reservation taken out."""


def reserve(
    head: Request,
    cluster: Cluster,
    timeline: Timeline,
    place: Callable[[Request, Cluster], Assignment | None],
) -> Shadow | None:
    """Find the earliest end after which the head fits, and the GPUs that it gets then.

    Bisection over the distinct ends: more free GPUs must never make a fitting job unfit, so
    ``place`` is :meth:`Chooser.could_place`. None if the head does not fit even when every known
    job has ended.
    """
    low, high = -1, len(timeline.ends) - 1
    found: tuple[Assignment, Cluster] | None = None
    if high >= 0:
        later = timeline.at(cluster, timeline.ends[high])
        assignment = place(head, later)
        found = None if assignment is None else (assignment, later)
    if found is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        later = timeline.at(cluster, timeline.ends[middle])
        assignment = place(head, later)
        if assignment is None:
            low = middle
        else:
            high, found = middle, (assignment, later)
    assignment, rest = found
    take(rest, head, assignment)
    return Shadow(timeline.ends[high], assignment, rest)


class Beside:
    """The free part of the cluster for jobs behind the head, kept as they are given GPUs.

    ``now`` is all that is free; ``outside`` is what a job may keep past the shadow start.
    """

    def __init__(self, cluster: Cluster, shadow: Shadow | None) -> None:
        self.now = cluster
        self.shadow = shadow
        self.outside = cluster
        if shadow is not None:
            rest = shadow.rest
            self.outside = replace(
                cluster,
                free=cluster.free & rest.free,
                free_cpus=np.minimum(cluster.free_cpus, rest.free_cpus),
                free_memory_mb=np.minimum(cluster.free_memory_mb, rest.free_memory_mb),
            )

    def ends_before(self, request: Request, now_s: float) -> bool:
        """Say whether the job is over, by its time limit, when the head starts.

        A job without a limit never is, not even before a head that waits for one.
        """
        if self.shadow is None:
            return True
        limit = request.time_limit_s
        return math.isfinite(limit) and now_s + limit <= self.shadow.start_s

    def view(self, request: Request, now_s: float) -> Cluster:
        """Return the cluster that the job may choose from."""
        return self.now if self.ends_before(request, now_s) else self.outside

    def take(self, request: Request, assignment: Assignment, now_s: float) -> None:
        """Mark an assignment as held, in place."""
        take(self.now, request, assignment)
        if self.shadow is None:
            return
        past = not self.ends_before(request, now_s)
        rest, count = self.shadow.rest, len(assignment.nodes)
        for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
            if past:
                cpus, memory_mb = node_demand(request, count, len(slots))
                rest.take(node, slots, cpus, memory_mb)
            self.outside.free[node, list(slots)] = False
            self.outside.free_cpus[node] = min(self.now.free_cpus[node], rest.free_cpus[node])
            self.outside.free_memory_mb[node] = min(
                self.now.free_memory_mb[node], rest.free_memory_mb[node]
            )
