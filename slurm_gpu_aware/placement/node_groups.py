"""Policies for requests whose nodes must all be of one group (`NodeGroups`).

A policy knows nothing of groups. One that walks the cluster's locality levels (``by_levels``) is
shown levels of which none reaches beyond a group: it compares all groups at once. Any other is
first asked as if there were no groups. If its nodes are of one group, that is the answer. Otherwise
it is asked for each group that could hold the request by numbers, the one with the fewest free GPUs
first; the least predicted slowdown wins, then the lower score, then the earlier group. A group
where the job is as fast as without the rule ends the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.placement.binding import place_bound, reason_bound
from slurm_gpu_aware.placement.feasible import allowed_nodes, why_not
from slurm_gpu_aware.placement.policy import Policy, WithReasons
from slurm_gpu_aware.placement.reasons import Reason
from slurm_gpu_aware.placement.tables import inside_groups

__all__ = ["place_together", "reason_together"]


def place_together(
    policy: Policy,
    request: Request,
    cluster: Cluster,
    between: Callable[[], object] | None = None,
) -> Assignment | None:
    """Ask a policy; all nodes of the answer are of one group, where the request wants that.

    ``between``: called before each further question to the policy.

    Notes
    -----
    One question to a policy by levels, and to others if the first answer lies in one group;
    otherwise one more for each group that has enough free GPUs on nodes that the job may use, at
    most.
    """
    if request.together is None:
        return place_bound(policy, request, cluster)
    kept = request.together
    anyone = _anywhere(request, cluster, kept)
    if getattr(policy, "by_levels", False):
        found = place_bound(policy, anyone, inside_groups(cluster, kept.of))
        return None if found is None else _told(found, kept, len(_groups(request, cluster, kept)))
    anywhere = place_bound(policy, anyone, cluster)
    if anywhere is not None and len({int(kept.of[node]) for node in anywhere.nodes}) == 1:
        return _told(anywhere, kept, 0)
    best: Assignment | None = None
    tried = 0
    for group in _groups(request, cluster, kept):
        if between is not None:
            between()
        tried += 1
        found = place_bound(policy, _inside(request, cluster, kept, group), cluster)
        if found is None:
            continue
        if best is None or (found.slowdown, found.score) < (best.slowdown, best.score):
            best = found
        if anywhere is not None and best.slowdown <= anywhere.slowdown:
            break
    return None if best is None else _told(best, kept, tried)


def reason_together(policy: Policy, request: Request, cluster: Cluster) -> Reason:
    """Say why `place_together` is None."""
    kept = request.together
    if kept is None:
        return reason_bound(policy, request, cluster)
    anywhere = _anywhere(request, cluster, kept)
    if place_bound(policy, anywhere, cluster) is None:
        return reason_bound(policy, anywhere, cluster)
    if isinstance(policy, WithReasons):
        for group in _groups(request, cluster, kept):
            found = reason_bound(policy, _inside(request, cluster, kept, group), cluster)
            if found.own:
                return found
    text = f"no {kept.name} has room for all of it, and Slurm starts it inside one only"
    usable = _usable(request, cluster, kept)
    if usable.any():
        free = _free_by_group(cluster, kept.of, usable)
        group = int(np.where(np.bincount(kept.of[usable]) > 0, free, -1).argmax())
        inside = why_not(_inside(request, cluster, kept, group), cluster)
        text += f"; where most is free: {inside}"
    return Reason(text)


def _told(found: Assignment, kept: NodeGroups, tried: int) -> Assignment:
    text = f"all nodes in one {kept.name}"
    if tried:
        text += f" ({tried} tried)"
    why = {"together": {"group": kept.name, "tried": tried}}
    summary = f"{found.why.get('summary', '')}; {text}"
    return replace(found, why={**found.why, **why, "summary": summary})


def _usable(request: Request, cluster: Cluster, kept: NodeGroups) -> BoolArray:
    """(N,) nodes of any group that eligibility and model leave."""
    allowed = allowed_nodes(request, cluster)
    inside: BoolArray = kept.of >= 0
    return inside if allowed is None else inside & allowed


def _anywhere(request: Request, cluster: Cluster, kept: NodeGroups) -> Request:
    return replace(request, together=None, eligible=_usable(request, cluster, kept))


def _inside(request: Request, cluster: Cluster, kept: NodeGroups, group: int) -> Request:
    usable = _usable(request, cluster, kept)
    return replace(request, together=None, eligible=usable & (kept.of == group))


def _free_by_group(cluster: Cluster, of: IntArray, usable: BoolArray) -> IntArray:
    counts = cluster.free.sum(axis=1)[usable]
    return np.bincount(of[usable], weights=counts).astype(np.int64)


def _groups(request: Request, cluster: Cluster, kept: NodeGroups) -> list[int]:
    """Groups with GPUs enough by numbers, CPUs and memory aside; the fewest free GPUs first."""
    of = kept.of
    usable = _usable(request, cluster, kept)
    free = _free_by_group(cluster, of, usable)
    able = free >= request.gpus
    if cluster.same_indices or request.whole_node or request.gpus_per_node is not None:
        counts = cluster.free.sum(axis=1)
        even = np.zeros_like(able)
        for nodes in request.node_counts(cluster.shape[1]):
            enough = usable & (counts >= request.gpus // nodes)
            even |= np.bincount(of[enough], minlength=len(even)) >= nodes
        able &= even
    if request.required:
        there = {int(of[node]) for node in request.required}
        able &= np.isin(np.arange(len(able)), list(there)) if len(there) == 1 else False
    return sorted(np.flatnonzero(able).tolist(), key=lambda group: (int(free[group]), group))
