"""Shadow reservation of a job that does not fit: when it starts at the latest, and where."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpus
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.postponing import awaited
from slurm_gpu_aware.planning.timeline import Timeline, hold, take

_TIMES = 2.0
"""A job that passed the head may end at any time, or late. By what it has run for it is expected to
end when it has run twice as long: so no job behind delays the head for longer than that job has,
and GPUs wait for no more than the time limit of a job that could use them."""


@dataclass(frozen=True, eq=False)
class Shadow:
    """Shadow reservation of the head."""

    start_s: float
    """Latest start of the head (inf if it waits for a job without a time limit), or the expected
    start of a head that waits for a better set."""
    gpus: Gpus
    rest: Cluster  # The cluster at ``start_s`` without the reserved resources.
    bound: bool = False  # The head needs cores of certain sockets.
    by_slurm: bool = False  # Slurm chooses the head's GPUs.
    unpassed: Shadow | None = None
    """An earlier one, if the jobs that passed it (`Timeline.passed`) end earlier."""
    early: bool = False  # It is such an earlier one.
    held_up: Gpus = ()
    """GPUs on which it would start now without these jobs, some of which may be ending."""


def reserve(
    head: Request,
    cluster: Cluster,
    timeline: Timeline,
    dispatcher: Dispatcher,
    wait: Postponement | None = None,
) -> Shadow | None:
    """Find the earliest end after which the head fits; None: it fits after none.

    ``wait``: the head waits by its own choice. Its set is reserved from its expected start, which
    is earlier than the limits promise, so that no other job takes parts of it.
    """
    if wait is not None and (gpus := awaited(head, wait, cluster)):
        nodes = [node for node, _ in gpus]
        exact = not head.nodes.whole and bool(cluster.indexed[nodes].all())
        ended = dispatcher.ends.beside_gpus(nodes, wait.start_s)
        rest = Timeline(ended, wait.start_s).at(cluster, math.inf)
        for node, slots in gpus:
            rest.free[node, list(slots)] = True  # also if a job there is late
        if cluster.power_w is not None and rest.power_w is not None:
            gone = [end.job for end in dispatcher.ends.until(wait.start_s)]
            rest.power_w[:] = Timeline(gone, 0.0).at(cluster, math.inf).power_w
        hold(rest, head, gpus, exact=exact)
        return Shadow(wait.start_s, gpus, rest, head.sockets.bound)
    shadow, now = _earliest(head, cluster, timeline, dispatcher), timeline.now
    if shadow is None or now < shadow.start_s <= timeline.earliest(head, cluster):
        return shadow  # it waits for GPUs only
    passed = timeline.passed(head)
    if shadow.start_s <= now:
        there = {node for job in passed for node in job.on_nodes}
        waits = any(node in there for node, _ in shadow.gpus)
        return replace(shadow, held_up=shadow.gpus if waits else ())
    if not passed:
        return shadow
    placed = dispatcher.could_place(head, timeline.ending(passed, 1.0).at(cluster, now))
    unpassed = _earliest(head, cluster, timeline.ending(passed, _TIMES), dispatcher)
    if unpassed is not None:
        earlier = unpassed.start_s < shadow.start_s
        unpassed = replace(unpassed, early=True) if earlier else None
    return replace(shadow, unpassed=unpassed, held_up=placed.gpus if placed else ())


def _earliest(
    head: Request, cluster: Cluster, timeline: Timeline, dispatcher: Dispatcher
) -> Shadow | None:
    @cache
    def at(time_s: float) -> tuple[Assignment | None, Cluster]:
        later = timeline.at(cluster, time_s)
        return dispatcher.could_place(head, later), later

    def fits(time_s: float) -> bool:
        return at(time_s)[0] is not None

    start_s = timeline.earliest(head, cluster)
    waits = cluster.by_slurm is not None and dispatcher.could_place(head, cluster) is None
    if waits and fits(timeline.now):
        start_s = timeline.now  # as soon as the jobs on its nodes have started
    elif start_s <= timeline.now or not fits(start_s):  # it lacks more than GPUs
        ends = timeline.ends[bisect_left(timeline.ends, start_s) :]
        if not ends or not fits(ends[-1]):
            return None
        start_s = ends[bisect_left(ends, True, key=fits)]
    assignment, rest = at(start_s)
    assert assignment is not None  # noqa: S101 - it fits then
    take(rest, head, assignment)
    return Shadow(start_s, assignment.gpus, rest, head.sockets.bound, head.left is not None)
