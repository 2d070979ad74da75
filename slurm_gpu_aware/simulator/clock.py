"""Event clock: ends of jobs, crossings of the LAS threshold, postponed jobs, rounds."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import count

from slurm_gpu_aware.simulator.active import ActiveJob

__all__ = ["EventClock"]


class EventClock:
    """Events of the running jobs. Times in seconds of the trace.

    An entry is void once its job changes its pace or loses its GPUs.
    """

    def __init__(self, round_s: float | None) -> None:
        self.round_s = round_s
        self.now = 0.0
        self.planned_at = -math.inf
        """Time of the last round."""
        self.due_s: float | None = None
        """Time at which the policy accepts a worse set for a job that the last round postponed."""
        self._ends: list[tuple[float, int, ActiveJob, int]] = []
        self._crossings: list[tuple[float, int, ActiveJob, float]] = []
        self._sequence = count()

    def expect_end(self, time: float, active: ActiveJob) -> None:
        """Add the time at which the job's work is done at its present pace."""
        heapq.heappush(self._ends, (time, next(self._sequence), active, active.version))

    def expect_crossing(self, time: float, active: ActiveJob) -> None:
        """Add the time at which the job, if it keeps its GPUs, reaches the LAS threshold."""
        heapq.heappush(self._crossings, (time, next(self._sequence), active, active.placed_s))

    def ended(self) -> Iterator[ActiveJob]:
        """Remove and yield the jobs that have done their work by now."""
        while self._ends and self._ends[0][0] <= self.now:
            _, _, active, version = heapq.heappop(self._ends)
            if active.version == version:
                yield active

    def crossed(self) -> bool:
        """Whether a running job has reached the threshold since the last call."""
        crossed = False
        while self._crossings and self._crossings[0][0] <= self.now:
            _, _, active, placed_s = heapq.heappop(self._crossings)
            crossed |= _holds(active, placed_s)
        return crossed

    def due(self) -> bool:
        """Whether the postponed job is due; clears it if so."""
        if self.due_s is None or self.due_s > self.now:
            return False
        self.due_s = None
        return True

    def next_end(self) -> float | None:
        """Time of the next end; None: nothing runs."""
        while self._ends and self._ends[0][2].version != self._ends[0][3]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def next_crossing(self) -> float | None:
        """Time of the next crossing; None: no running job is below the threshold."""
        while self._crossings and not _holds(self._crossings[0][2], self._crossings[0][3]):
            heapq.heappop(self._crossings)
        return self._crossings[0][0] if self._crossings else None

    def next_round(self) -> float:
        """First time, now or later, at which a round may run."""
        if self.round_s is None:
            return self.now
        boundary = math.ceil(self.now / self.round_s) * self.round_s
        return boundary if boundary > self.planned_at else self.planned_at + self.round_s


def _holds(active: ActiveJob, placed_s: float) -> bool:
    """Whether the job still holds the GPUs that it got at that time."""
    return active.placed is not None and active.placed_s == placed_s
