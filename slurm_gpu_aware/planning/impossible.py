"""Jobs that cannot start on the empty cluster: on the nodes that are usable now, or on any.

The one place that calls a job impossible. It asks about `Cluster.empty`: no running or placed job,
no power limit, nothing that a reading of Slurm may have missed or counted twice plays a part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import Reason
from slurm_gpu_aware.planning.dispatcher import Dispatcher, shape_of

_MOST_NAMES = 3


class Impossible:
    """Verdicts of one round; jobs that fit alike are asked about once."""

    def __init__(self, cluster: Cluster, dispatcher: Dispatcher) -> None:
        """``cluster``: the snapshot of the round."""
        self._cluster, self._dispatcher = cluster, dispatcher
        self._known: dict[object, Reason | None] = {}

    @cached_property
    def _empty(self) -> Cluster:
        return self._cluster.empty()

    @cached_property
    def _repaired(self) -> Cluster:
        return self._cluster.empty(repaired=True)

    def why(self, request: Request) -> Reason | None:
        """Why a job has no place on the empty cluster; None: it has one.

        "Never" is said only of a job that has none when all nodes are back and no reservation is
        left. ``own`` is of the nodes that are usable now.
        """
        key = shape_of(request)
        if key not in self._known:
            fits = self._dispatcher.could_place(request, self._empty) is not None
            self._known[key] = None if fits else self._reason(request)
        return self._known[key]

    def _reason(self, request: Request) -> Reason:
        ask, missing = self._dispatcher, self._missing(request)
        now, later = ask.why_not(request, self._empty), request.unreserved
        # The sockets of a node that is down may not be known.
        if missing and ask.could_place(later.on_any_sockets, self._repaired) is not None:
            return replace(now, text=f"{now.text}; down, drained or reserved: {missing}")
        never = ask.why_not(later, self._repaired).text
        return replace(now, text=f"cannot start even on an idle cluster: {never}")

    def _missing(self, request: Request) -> str:
        """Names of the nodes on which something that the job may use cannot be used now."""
        missing = (self._repaired.exists & ~self._cluster.exists).any(axis=1)
        if request.nodes.eligible is not None:
            missing |= ~request.nodes.eligible
        if (allowed := request.unreserved.nodes.eligible) is not None:
            missing &= allowed
        names = [self._cluster.nodes[i] for i in np.flatnonzero(missing)]
        more = len(names) - _MOST_NAMES
        return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
