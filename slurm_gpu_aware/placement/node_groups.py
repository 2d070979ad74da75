"""Constraint that all nodes of a request are in one group (`NodeGroups`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.placement.constraints import Constraint, PowerSaving, SocketBinding, with_note
from slurm_gpu_aware.placement.feasible import allowed_nodes, common_reason
from slurm_gpu_aware.placement.level_views import inside_groups
from slurm_gpu_aware.placement.policy import Policy, Reason

__all__ = ["OneGroup", "constrained"]


def constrained(policy: Policy) -> Policy:
    """Return the policy with all constraints that a request may have."""
    return PowerSaving(OneGroup(SocketBinding(policy)))


class OneGroup(Constraint):
    """All nodes of a request with ``node_groups`` are in one group.

    A policy with ``by_levels`` gets levels that do not span groups, so it compares all groups at
    once. Any other policy is first asked without groups; its answer counts if its nodes are in one
    group. Otherwise it is asked for each group with enough GPUs, fewest free GPUs first. The least
    predicted slowdown wins, then the lower score, then the earlier group. A group in which the job
    is as fast as without the constraint ends the search.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return nodes of one group and their slots, or None."""
        groups = request.node_groups
        if groups is None:
            return self.inner.place(request, cluster)
        free = self.without(request, cluster)
        if self.by_levels:
            found = self.inner.place(free, inside_groups(cluster, groups.of))
            return found and _noted(found, groups, len(_able(request, cluster, groups)))
        anywhere = self.inner.place(free, cluster)
        if anywhere is not None and len({int(groups.of[node]) for node in anywhere.nodes}) == 1:
            return _noted(anywhere, groups, 0)
        best: Assignment | None = None
        tried = 0
        for group in _able(request, cluster, groups):
            tried += 1
            found = self.inner.place(_inside(request, cluster, groups, group), cluster)
            if found is None:
                continue
            if best is None or (found.slowdown, found.score) < (best.slowdown, best.score):
                best = found
            if anywhere is not None and best.slowdown <= anywhere.slowdown:
                break
        return best and _noted(best, groups, tried)

    def without(self, request: Request, cluster: Cluster) -> Request:
        """Return the request without groups, on nodes of any group."""
        groups = request.node_groups
        if groups is None:
            return request
        return replace(request, node_groups=None, eligible=_usable(request, cluster, groups))

    def broken(self, request: Request, cluster: Cluster) -> Reason:
        """Say that no group has room, or which rule of the policy applies inside a group."""
        groups = request.node_groups
        assert groups is not None  # noqa: S101 - `without` changed the request
        for group in _able(request, cluster, groups) if self.has_rules else ():
            found = self.inner.why_not(_inside(request, cluster, groups, group), cluster)
            if found.own:
                return found
        usable = _usable(request, cluster, groups)
        free = _free_by_group(cluster, groups.of, usable)
        largest = int(np.where(np.bincount(groups.of[usable]) > 0, free, -1).argmax())
        inside = common_reason(_inside(request, cluster, groups, largest), cluster)
        return Reason(f"no {groups.name} has room for all of it; where most is free: {inside}")


def _noted(found: Assignment, groups: NodeGroups, tried: int) -> Assignment:
    text = f"all nodes in one {groups.name}" + (f" ({tried} tried)" if tried else "")
    return with_note(found, text, node_groups={"group": groups.name, "tried": tried})


def _usable(request: Request, cluster: Cluster, groups: NodeGroups) -> BoolArray:
    """(N,) nodes of any group that eligibility and GPU model allow."""
    allowed = allowed_nodes(request, cluster)
    inside: BoolArray = groups.of >= 0
    return inside if allowed is None else inside & allowed


def _inside(request: Request, cluster: Cluster, groups: NodeGroups, group: int) -> Request:
    usable = _usable(request, cluster, groups) & (groups.of == group)
    return replace(request, node_groups=None, eligible=usable)


def _free_by_group(cluster: Cluster, of: IntArray, usable: BoolArray) -> IntArray:
    counts = cluster.free.sum(axis=1)[usable]
    return np.bincount(of[usable], weights=counts).astype(np.int64)


def _able(request: Request, cluster: Cluster, groups: NodeGroups) -> list[int]:
    """Groups with enough free GPUs, without CPUs and memory; fewest free GPUs first."""
    of = groups.of
    usable = _usable(request, cluster, groups)
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
