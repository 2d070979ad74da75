"""Policies for requests whose GPUs and CPUs have to lie on the same socket.

A policy knows nothing of sockets: it is asked for each view of the cluster (`sockets.views`) in
turn. Of as many nodes the view with the least predicted slowdown wins, then the lowest socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.socket_views import views
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.reasons import Reason, reason_for

__all__ = ["place_bound", "reason_bound"]


def place_bound(policy: Policy, request: Request, cluster: Cluster) -> Assignment | None:
    """Ask a policy; a bound request gets GPUs with its CPUs on their socket, where that is known.

    Where no socket of a node has both, the node is chosen and Slurm chooses the GPUs.
    """
    if not request.bound or cluster.sockets is None:
        return policy.place(request, cluster)
    for _, alike in groupby(
        views(request, cluster), key=lambda view: (view[0].min_nodes, view[1].indexed.any())
    ):
        found = list(_placed(policy, alike))
        if found:
            return _told(min(found, key=lambda a: a.slowdown))
    return None


def _placed(policy: Policy, alike: Iterator[tuple[Request, Cluster]]) -> Iterator[Assignment]:
    for asked, view in alike:
        found = policy.place(asked, view)
        if found is not None:
            yield found


def _told(found: Assignment) -> Assignment:
    how = "with its CPUs on the socket of its GPUs"
    if not found.exact:
        how = "Slurm chooses its GPUs, with its CPUs on their sockets"
    text = f"{found.why.get('summary', '')}; {how}"
    return replace(found, why={**found.why, "summary": text, "sockets": how})


def reason_bound(policy: Policy, request: Request, cluster: Cluster) -> Reason:
    """Say why `place_bound` is None."""
    if not request.bound or cluster.sockets is None:
        return reason_for(policy, request, cluster)
    anywhere = replace(request, bound=False)
    if policy.place(anywhere, cluster) is None:
        return reason_for(policy, anywhere, cluster)
    return Reason("GPUs are free, but not with enough free CPUs on their sockets (enforce-binding)")
