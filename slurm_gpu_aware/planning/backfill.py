"""EASY backfill: a reservation for the head of the queue, and what may run beside it.

The first job that does not fit gets a *shadow reservation*: the earliest time at which enough
GPUs, CPUs and memory are free by the running jobs' time limits, and the concrete GPUs that its own
policy picks then. A job behind it may start now if it cannot delay that: it ends before the shadow
start, or it needs nothing that the reservation needs (Lifka, "The ANL/IBM SP scheduling system",
1995, on concrete GPUs instead of counts).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.timeline import Held, Timeline, take

__all__ = ["Beside", "Shadow", "reserve"]


@dataclass(frozen=True, eq=False)
class Shadow:
    """The head's reservation."""

    start_s: float
    """Latest start of the head; inf if it waits for a job without a time limit."""
    assignment: Assignment
    rest: Cluster
    """The cluster at ``start_s`` with the reservation taken out."""
    bound: bool = False
    """The head needs cores of certain sockets."""


def reserve(
    head: Request, cluster: Cluster, timeline: Timeline, dispatcher: Dispatcher
) -> Shadow | None:
    """Find the earliest end after which the head fits, and the GPUs that it gets then.

    Bisection over the distinct ends: more free GPUs must never make a fitting job unfit, so this
    is a question of capacity. None if the head does not fit even when every known job has ended.
    """

    @cache
    def at(index: int) -> tuple[Assignment | None, Cluster]:
        later = timeline.at(cluster, timeline.ends[index])
        return dispatcher.could_place(head, later), later

    last = len(timeline.ends) - 1
    if last < 0 or at(last)[0] is None:
        return None
    first = bisect_left(range(last), True, key=lambda index: at(index)[0] is not None)
    assignment, rest = at(first)
    assert assignment is not None  # noqa: S101 - it fits at the last end, or at this one
    take(rest, head, assignment)
    return Shadow(timeline.ends[first], assignment, rest, head.bound)


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
            if cluster.sockets is not None and rest.sockets is not None:
                both = cluster.sockets.least(rest.sockets)
                self.outside = replace(self.outside, sockets=both)

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
        if self.ends_before(request, now_s):
            return self.now
        if self.shadow is not None and self.shadow.bound and not request.bound:
            return _keeping_cores(self.outside, request, self.shadow.assignment)
        if self.shadow is not None and request.bound and request.fills_sockets:
            return _unreserved_sockets(self.outside, request, self.now)
        return self.outside

    def take(self, request: Request, assignment: Assignment, now_s: float) -> Mapping[int, Held]:
        """Mark an assignment as held, in place; return what is held beside its GPUs."""
        held = take(self.now, request, assignment)
        if self.shadow is None:
            return held
        past = not self.ends_before(request, now_s)
        rest = self.shadow.rest
        for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
            share = held[node]
            if past:
                rest.take(node, slots, share.cpus, share.memory_mb, share.socket_cpus)
            self.outside.free[node, [*slots, *share.unsure]] = False
            self.outside.free_cpus[node] = min(self.now.free_cpus[node], rest.free_cpus[node])
            self.outside.free_memory_mb[node] = min(
                self.now.free_memory_mb[node], rest.free_memory_mb[node]
            )
            if self.outside.sockets and self.now.sockets and rest.sockets:
                self.outside.sockets.free_cpus[node] = np.minimum(
                    self.now.sockets.free_cpus[node], rest.sockets.free_cpus[node]
                )
                self.outside.sockets.quiet[node] = False
        return held


def _keeping_cores(cluster: Cluster, request: Request, head: Assignment) -> Cluster:
    """The cluster for a job that does not care for sockets and outlasts the start of one that does.

    On the nodes of ``head`` it is shown only GPUs with its CPUs free beside each of them: so Slurm,
    which takes cores beside the GPUs first, takes none that are reserved.
    """
    sockets = cluster.sockets
    if sockets is None:
        return cluster
    most = max((request.cpus_on_node(n) for n in request.node_counts(cluster.shape[1])), default=0)
    free = cluster.free.copy()
    for node in head.nodes:
        socket = sockets.gpu[node]
        free[node] &= (socket >= 0) & (sockets.free_cpus[node, np.maximum(socket, 0)] >= most)
    return replace(cluster, free=free)


def _unreserved_sockets(cluster: Cluster, request: Request, now: Cluster) -> Cluster:
    """The cluster for a job that gets every core beside its GPUs and outlasts the head's start.

    It is shown only GPUs on sockets of which nothing is reserved that is free ``now``: neither
    cores nor the memory that comes with each of them.
    """
    if cluster.sockets is None or now.sockets is None:
        return cluster
    all_free = now.sockets.free_cpus
    whole = cluster.sockets.free_cpus >= all_free
    if request.memory_mb_per_cpu:
        memory_mb = np.minimum(request.memory_mb_per_cpu * all_free, now.free_memory_mb[:, None])
        whole &= cluster.free_memory_mb[:, None] >= memory_mb
    socket = cluster.sockets.gpu
    beside = np.take_along_axis(whole, np.maximum(socket, 0), axis=1)
    return replace(cluster, free=cluster.free & (socket >= 0) & beside)
