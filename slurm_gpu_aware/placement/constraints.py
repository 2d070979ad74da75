"""Constraints around policies: sockets, groups of nodes, power saving.

A constraint is a policy that asks an inner policy with narrower requests and clusters, so that
every answer satisfies the constraint and no policy needs to know it.
"""

from bisect import bisect_left
from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.model.socket_views import socket_views
from slurm_gpu_aware.placement import facts
from slurm_gpu_aware.placement.feasible import common_reason, open_nodes
from slurm_gpu_aware.placement.level_views import inside_groups
from slurm_gpu_aware.placement.policy import Policy, Reason, WaitRule


def constrained(policy: Policy) -> Policy:
    """Return the policy with all constraints that a request may have."""
    return PowerSaving(OneGroup(OnSockets(policy)))


class Constraint(Policy):
    """A policy that asks an inner policy; a constraint that can be broken has all methods."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner.options)
        self.inner = inner
        self.by_levels = inner.by_levels
        self.may_postpone = inner.may_postpone
        self.has_rules = inner.has_rules

    def wait_rule(self) -> WaitRule | None:
        return self.inner.wait_rule()

    def without(self, request: Request, cluster: Cluster) -> Request:
        """Return the request without this constraint; the same object if it does not apply."""
        return request

    def broken(self, request: Request, cluster: Cluster) -> Reason:
        """Say why a request has a place only without the constraint."""
        return self.inner.why_not(request, cluster)

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        """Say why `place` is None: this constraint, if it alone is the reason."""
        free = self.without(request, cluster)
        if free is request or self.inner.place(free, cluster) is None:
            return self.inner.why_not(free, cluster)
        return self.broken(request, cluster)


class OnSockets(Constraint):
    """GPUs by socket: ``--gpus-per-socket``, ``--gres-flags=enforce-binding``.

    The policy is asked for each view of the cluster (`socket_views`). With the fewest nodes, the
    view with the least predicted slowdown wins, then the first: lowest indices or socket. If no
    socket of a node has GPUs and CPUs of a bound request, Slurm chooses the GPUs on the chosen
    node.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        if self.without(request, cluster) is request:
            return self.inner.place(request, cluster)
        for _, alike in groupby(
            socket_views(request, cluster),
            key=lambda view: (view[0].min_nodes, view[1].indexed.any()),
        ):
            placed = [self.inner.place(asked, view) for asked, view in alike]
            best = min(filter(None, placed), key=lambda a: a.slowdown, default=None)
            if best is not None:
                each = None if request.sockets.bound else request.sockets.gpus_each
                return best.explained(facts.OnSockets(each, not best.exact))
        return None

    def without(self, request: Request, cluster: Cluster) -> Request:
        return request if cluster.sockets is None else request.on_any_sockets

    def broken(self, request: Request, cluster: Cluster) -> Reason:
        lacking = "too few CPUs on their sockets (enforce-binding)"
        if not request.sockets.bound:
            lacking = "not as many on each socket (--gpus-per-socket)"
        return Reason(f"GPUs are free, but {lacking}")


class OneGroup(Constraint):
    """All nodes of a request with ``nodes.groups`` are in one group.

    A policy with ``by_levels`` gets levels that do not span groups, so it compares all groups at
    once. Any other policy is first asked without groups; its answer counts if its nodes are in one
    group. Otherwise it is asked for each group with enough GPUs, fewest free GPUs first. The least
    predicted slowdown wins, then the lower score, then the earlier group. A group in which the job
    is as fast as without the constraint ends the search.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        groups = request.nodes.groups
        if groups is None:
            return self.inner.place(request, cluster)
        usable = _usable(request, cluster, groups)
        free = _on(request, usable)
        if self.by_levels:
            found = self.inner.place(free, inside_groups(cluster, groups.of))
            return found and _noted(found, groups, len(_able(request, cluster, groups.of, usable)))
        anywhere = self.inner.place(free, cluster)
        if anywhere is not None and len({int(groups.of[node]) for node in anywhere.nodes}) == 1:
            return _noted(anywhere, groups, 0)
        best: Assignment | None = None
        tried = 0
        for group in _able(request, cluster, groups.of, usable):
            tried += 1
            found = self.inner.place(_on(request, usable & (groups.of == group)), cluster)
            if found is None:
                continue
            if best is None or (found.slowdown, found.score) < (best.slowdown, best.score):
                best = found
            if anywhere is not None and best.slowdown <= anywhere.slowdown:
                break
        return best and _noted(best, groups, tried)

    def without(self, request: Request, cluster: Cluster) -> Request:
        groups = request.nodes.groups
        return request if groups is None else _on(request, _usable(request, cluster, groups))

    def broken(self, request: Request, cluster: Cluster) -> Reason:
        """No group has room, or a rule of the policy applies inside a group."""
        groups = request.nodes.groups
        assert groups is not None  # noqa: S101 - `without` changed the request
        usable = _usable(request, cluster, groups)
        for group in _able(request, cluster, groups.of, usable) if self.has_rules else ():
            found = self.inner.why_not(_on(request, usable & (groups.of == group)), cluster)
            if found.own:
                return found
        free = _free_by_group(cluster, groups.of, usable)
        largest = int(np.where(np.bincount(groups.of[usable]) > 0, free, -1).argmax())
        inside = common_reason(_on(request, usable & (groups.of == largest)), cluster)
        return Reason(f"no {groups.name} has room for all of it; where most is free: {inside}")


def _noted(found: Assignment, groups: NodeGroups, tried: int) -> Assignment:
    return found.explained(facts.InGroup(groups.name, tried))


def _usable(request: Request, cluster: Cluster, groups: NodeGroups) -> BoolArray:
    """(N,) nodes of any group that eligibility and GPU model allow."""
    allowed = open_nodes(request, cluster)
    inside: BoolArray = groups.of >= 0
    return inside if allowed is None else inside & allowed


def _on(request: Request, nodes: BoolArray) -> Request:
    return replace(request, nodes=replace(request.nodes, groups=None, eligible=nodes))


def _free_by_group(cluster: Cluster, of: IntArray, usable: BoolArray) -> IntArray:
    counts = cluster.free.sum(axis=1)[usable]
    return np.bincount(of[usable], weights=counts).astype(np.int64)


def _able(request: Request, cluster: Cluster, of: IntArray, usable: BoolArray) -> list[int]:
    """Groups with enough free GPUs, without CPUs and memory; fewest free GPUs first."""
    free = _free_by_group(cluster, of, usable)
    able = free >= request.gpus
    if cluster.same_indices or request.nodes.whole or request.gpus_per_node is not None:
        counts = cluster.free.sum(axis=1)
        even = np.zeros_like(able)
        for nodes in request.node_counts(cluster.shape[1]):
            enough = usable & (counts >= request.gpus // nodes)
            even |= np.bincount(of[enough], minlength=len(even)) >= nodes
        able &= even
    if request.nodes.required:
        there = {int(of[node]) for node in request.nodes.required}
        able &= np.isin(np.arange(len(able)), list(there)) if len(there) == 1 else False
    return sorted(np.flatnonzero(able).tolist(), key=lambda group: (int(free[group]), group))


class PowerSaving(Constraint):
    """A request wakes sleeping nodes only if it fits on no others, and as few as possible.

    Slurm's scheduler also takes them last, by their weight. The policy first places the request as
    if all nodes were awake; of the sleeping nodes in its answer the request may use the first few
    that it needs. `facts.Woken` names them.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        asleep = cluster.asleep
        if asleep is None:
            return self.inner.place(request, cluster)
        found = self._waking_few(request, cluster, asleep)
        if found is None or not asleep[list(found.nodes)].any():
            return found
        names = tuple(cluster.nodes[node] for node in found.nodes if asleep[node])
        return found.explained(facts.Woken(names))

    def _waking_few(
        self, request: Request, cluster: Cluster, asleep: BoolArray
    ) -> Assignment | None:
        """``asleep``: (N,)."""
        if asleep[list(request.nodes.required)].any():
            return self.inner.place(request, cluster)
        eligible = request.nodes.eligible
        allowed = ~asleep if eligible is None else eligible & ~asleep
        free = int(np.count_nonzero(cluster.free[allowed]))
        awake = request.on_nodes(allowed)
        found = self.inner.place(awake, cluster) if free >= request.gpus else None
        if found is not None:
            return found
        found = self.inner.place(request, cluster)
        woken = [node for node in found.nodes if asleep[node]] if found is not None else []

        @cache
        def waking(count: int) -> Assignment | None:
            some = allowed.copy()
            some[woken[:count]] = True
            return self.inner.place(request.on_nodes(some), cluster)

        if not free or len(woken) < 2:
            return found
        counts = range(len(woken))
        few = bisect_left(counts, True, lo=1, key=lambda count: waking(count) is not None)
        return found if few == len(woken) else waking(few)
