"""When a postponed job is due: its policy asks for less with time.

A threshold falls while nothing arrives or ends. Live the next round comes after seconds anyway; a
virtual clock that only knows arrivals and ends would never look again.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.planning.dispatcher import shape_of

__all__ = ["next_due"]


def next_due(
    requests: Iterable[Request], policy: Policy, cluster: Cluster, now: float
) -> float | None:
    """First time after ``now`` at which one of these waiting requests asks for no more than the
    best that the cluster has for it now; None if there is no such time."""
    waits: dict[object, float | None] = {}
    due = []
    for request in requests:
        shape = shape_of(request)
        if shape not in waits:
            waits[shape] = policy.due_after_s(request, cluster)
        wait = waits[shape]
        if wait is not None and request.submit_s + wait > now:
            due.append(request.submit_s + wait)
    return min(due, default=None)
