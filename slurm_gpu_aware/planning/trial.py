"""Trial: jobs placed one after the other on a copy of the cluster, in several tries of a round.

Where a job goes follows from what was placed before it, in which order. So a try that begins like
an earlier one of the same round does not search anew until they part: mostly the prefix placed by
class again without the last job, which found no place.
"""

from __future__ import annotations

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.timeline import take

__all__ = ["Known", "Trial"]


class Known:
    """What was found after some placements: a tree, its root the cluster at the start."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Assignment | None, Known]] = {}
        """Request, by identity -> its assignment, and what is known behind that. A request
        without a place changes nothing."""


class Trial:
    """One try, from ``start``, which is not changed. ``known`` must be of the same start."""

    def __init__(self, start: Cluster, dispatcher: Dispatcher, known: Known) -> None:
        self._cluster = start.copy()
        self._dispatcher = dispatcher
        self._known = known

    def place(self, request: Request) -> Assignment | None:
        """Place the next job; None if it finds no place. Raises PlacementFailedError."""
        before = self._known.found.get(id(request))
        if before is None:
            found = self._dispatcher.place(request, self._cluster)
            before = (found, self._known if found is None else Known())
            self._known.found[id(request)] = before
        found, self._known = before
        if found is not None:
            take(self._cluster, request, found)
        return found
