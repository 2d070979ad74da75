"""Constraints around policies: base class, socket binding, power saving.

A constraint is a policy that asks an inner policy with narrower requests and clusters, so that
every answer satisfies the constraint and no policy needs to know it.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.socket_views import views
from slurm_gpu_aware.placement.policy import Policy, Reason

__all__ = ["Constraint", "PowerSaving", "SocketBinding", "with_note"]


def with_note(found: Assignment, text: str = "", **why: object) -> Assignment:
    """Return the assignment with ``why`` in its account and ``text`` in its summary."""
    summary = found.why.get("summary", "")
    return replace(found, why={**found.why, **why, "summary": f"{summary}; {text}"})


class Constraint(Policy):
    """A policy that satisfies a constraint by asking an inner policy."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner.options)
        self.inner = inner
        self.by_levels = inner.by_levels
        self.may_postpone = inner.may_postpone
        self.has_rules = inner.has_rules

    @abstractmethod
    def without(self, request: Request, cluster: Cluster) -> Request:
        """Return the request without this constraint; the same object if it does not apply."""

    def broken(self, request: Request, cluster: Cluster) -> Reason:
        """Say why a request has a place only without the constraint.

        A constraint that no request can break leaves the answer to the inner policy.
        """
        return self.inner.why_not(request, cluster)

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        """Say why `place` is None: this constraint, if it alone is the reason."""
        free = self.without(request, cluster)
        if free is request or self.inner.place(free, cluster) is None:
            return self.inner.why_not(free, cluster)
        return self.broken(request, cluster)


class SocketBinding(Constraint):
    """GPUs and CPUs of a bound request lie on the same socket (``--gres-flags=enforce-binding``).

    The policy is asked for each view of the cluster (`socket_views`). With the fewest nodes, the
    view with the least predicted slowdown wins, then the lowest socket. If no socket of a node has
    both, Slurm chooses the GPUs on the chosen node.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return nodes and slots with CPUs on their sockets, or None."""
        if not request.bound or cluster.sockets is None:
            return self.inner.place(request, cluster)
        for _, alike in groupby(
            views(request, cluster), key=lambda view: (view[0].min_nodes, view[1].indexed.any())
        ):
            found = list(self._placed(alike))
            if found:
                best = min(found, key=lambda a: a.slowdown)
                how = "with its CPUs on the socket of its GPUs"
                if not best.exact:
                    how = "Slurm chooses its GPUs, with its CPUs on their sockets"
                return with_note(best, how, sockets=how)
        return None

    def _placed(self, alike: Iterator[tuple[Request, Cluster]]) -> Iterator[Assignment]:
        for asked, view in alike:
            found = self.inner.place(asked, view)
            if found is not None:
                yield found

    def without(self, request: Request, cluster: Cluster) -> Request:
        """Return the request without the binding."""
        bound = request.bound and cluster.sockets is not None
        return replace(request, bound=False) if bound else request

    def broken(self, request: Request, cluster: Cluster) -> Reason:
        """Say that the sockets lack CPUs."""
        return Reason("GPUs are free, but too few CPUs on their sockets (enforce-binding)")


class PowerSaving(Constraint):
    """A request wakes sleeping nodes only if it fits on no others, and as few as possible.

    Slurm's scheduler also takes them last, by their weight.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return nodes and slots, on nodes that are awake as far as possible.

        The policy first places the request as if all nodes were awake; of the sleeping nodes in
        its answer the request may use the first few that it needs. ``why["woken"]`` names them.
        """
        asleep = cluster.asleep
        if asleep is None:
            return self.inner.place(request, cluster)
        found = self._waking_few(request, cluster, asleep)
        if found is None or not asleep[list(found.nodes)].any():
            return found
        names = [cluster.nodes[node] for node in found.nodes if asleep[node]]
        return replace(found, why={**found.why, "woken": names})

    def _waking_few(
        self, request: Request, cluster: Cluster, asleep: BoolArray
    ) -> Assignment | None:
        """``asleep``: (N,)."""
        if asleep[list(request.required)].any():
            return self.inner.place(request, cluster)
        allowed = ~asleep if request.eligible is None else request.eligible & ~asleep
        free = int(np.count_nonzero(cluster.free[allowed]))
        found = None
        if free >= request.gpus:
            found = self.inner.place(replace(request, eligible=allowed), cluster)
        if found is not None:
            return found
        found = self.inner.place(request, cluster)
        woken = [node for node in found.nodes if asleep[node]] if found is not None else []

        @cache
        def waking(count: int) -> Assignment | None:
            some = allowed.copy()
            some[woken[:count]] = True
            return self.inner.place(replace(request, eligible=some), cluster)

        if not free or len(woken) < 2:
            return found
        counts = range(len(woken))
        few = bisect_left(counts, True, lo=1, key=lambda count: waking(count) is not None)
        return found if few == len(woken) else waking(few)

    def without(self, request: Request, cluster: Cluster) -> Request:
        """Return the request: power saving refuses no request."""
        return request
