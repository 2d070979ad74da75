"""Constraints that no policy has to know: sockets, groups of nodes, sleeping nodes last.

A constraint is asked like a policy. It asks the policy below it with narrower requests and
clusters, so that every answer keeps the constraint.
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
    """Return the assignment with more in its account, and ``text`` at the end of its summary."""
    summary = found.why.get("summary", "")
    return replace(found, why={**found.why, **why, "summary": f"{summary}; {text}"})


class Constraint(Policy):
    """A policy that keeps a constraint by asking another one."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner.options)
        self.inner = inner
        self.by_levels = inner.by_levels
        self.may_postpone = inner.may_postpone
        self.has_rules = inner.has_rules

    @abstractmethod
    def without(self, request: Request, cluster: Cluster) -> Request:
        """Return the request without this constraint; the same object if it has none."""

    def broken(self, request: Request, cluster: Cluster) -> Reason:
        """Say why a request that has a place without the constraint has none with it."""
        raise NotImplementedError

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        """Say why `place` is None: this constraint if it alone is the reason."""
        free = self.without(request, cluster)
        if free is request or self.inner.place(free, cluster) is None:
            return self.inner.why_not(free, cluster)
        return self.broken(request, cluster)


class SocketBinding(Constraint):
    """GPUs and CPUs of a bound request lie on the same socket (``--gres-flags=enforce-binding``).

    The policy is asked for each view of the cluster (`socket_views`) in turn. Of as many nodes
    the view with the least predicted slowdown wins, then the lowest socket. Where no socket of a
    node has both, the node is chosen and Slurm chooses the GPUs.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return nodes and slots with the CPUs on their sockets, or None."""
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
    """Sleeping nodes are woken only for requests that fit on no others, and as few as possible.

    Slurm's own scheduler gives such nodes the highest weight, so it takes them last.
    """

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return nodes and slots, on nodes that are awake as far as possible.

        Sleeping nodes are those of the answer if all may be woken; of these the first few that
        the request needs beside nodes that are awake. ``why["woken"]`` names them.
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
        """Return the request itself: no request is refused for power saving."""
        return request
