"""EASY backfill: a reservation for the head of the queue, and resources for jobs behind the head.

The head is the first job that does not fit. It gets a *shadow reservation*: the earliest time at
which enough GPUs, CPUs and memory are free by the running jobs' time limits, and the GPUs that its
policy chooses for that time. A job behind the head may start now if it does not delay the head: it
ends before the shadow start, or it uses nothing of the reservation (Lifka, "The ANL/IBM SP
scheduling system", 1995, with GPUs instead of counts).
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
from slurm_gpu_aware.planning.timeline import NodeShare, Timeline, take

__all__ = ["BackfillRoom", "Shadow", "reserve"]


@dataclass(frozen=True, eq=False)
class Shadow:
    """Shadow reservation of the head."""

    start_s: float
    """Latest start of the head; inf if it waits for a job without a time limit."""
    assignment: Assignment
    rest: Cluster
    """The cluster at ``start_s`` without the reserved resources."""
    bound: bool = False
    """The head needs cores of certain sockets."""


def reserve(
    head: Request, cluster: Cluster, timeline: Timeline, dispatcher: Dispatcher
) -> Shadow | None:
    """Find the earliest end after which the head fits, and the GPUs that it then gets.

    Bisects the distinct ends, which needs `Dispatcher.could_place`: more free GPUs never make a
    fitting job unfit. None if the head does not fit even when all known jobs have ended.
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


class BackfillRoom:
    """Free resources for jobs behind the head, updated with each assignment.

    ``now``: all free resources. ``outside``: the resources that a job may use past the shadow
    start.
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
        """Say whether the job ends, by its time limit, before the head starts.

        False for a job without a limit, even if the head waits for a job without a limit.
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

    def take(
        self, request: Request, assignment: Assignment, now_s: float
    ) -> Mapping[int, NodeShare]:
        """Mark an assignment as held, in place; return its shares by node."""
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
    """The cluster for an unbound job that runs past the start of a bound head.

    On the nodes of ``head`` it shows only GPUs with enough free CPUs on their socket. Slurm takes
    cores beside the GPUs first, so it takes no reserved ones.
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
    """The cluster for a job that fills sockets and runs past the head's start.

    It shows only GPUs on sockets where everything that is free ``now`` is unreserved: the cores and
    the memory that Slurm adds for each core.
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
