"""Trial: placement of a sequence of jobs on a copy of the cluster.

The place of a job depends on the placements before it. Trials of one round share their results, so
a trial does not repeat the search for a beginning that it has in common with an earlier trial.
"""

from __future__ import annotations

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.timeline import take

__all__ = ["PlacementTree", "Trial"]


class PlacementTree:
    """Results after some placements: a node of a tree. The root is the cluster at the start."""

    def __init__(self) -> None:
        self.results: dict[int, tuple[Assignment | None, PlacementTree]] = {}
        """Identity of a request -> its assignment and the node after it, which is the same node for
        a request without a place."""


class Trial:
    """One trial from ``start``, which is not changed. ``tree``: the root for the same start."""

    def __init__(self, start: Cluster, dispatcher: Dispatcher, tree: PlacementTree) -> None:
        self._cluster = start.copy()
        self._dispatcher = dispatcher
        self._tree = tree

    def place(self, request: Request) -> Assignment | None:
        """Place the next job; None if it has no place. Raises PlacementFailedError."""
        result = self._tree.results.get(id(request))
        if result is None:
            assignment = self._dispatcher.place(request, self._cluster)
            result = (assignment, self._tree if assignment is None else PlacementTree())
            self._tree.results[id(request)] = result
        assignment, self._tree = result
        if assignment is not None:
            take(self._cluster, request, assignment)
        return assignment
