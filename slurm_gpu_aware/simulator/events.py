"""Events of a simulation in the order in which they happen, and the time of the run."""

import heapq
import math
from enum import IntEnum
from itertools import count
from typing import Any


class Kind(IntEnum):
    """Kinds of events; of those of one time the lesser kind happens first."""

    END = 0
    """The work of a job is done at its present pace, or its limit is reached."""
    FREE = 1
    """A background job ends."""
    HOLD = 2
    """A background job starts."""
    TAKE = 3
    """Background jobs take GPUs that they lacked."""
    ARRIVAL = 4
    """A job is submitted."""
    CROSSING = 5
    """A job, if it has kept its GPUs, reaches the LAS threshold."""
    WAKE = 6
    """The policy accepts a worse set for a postponed job, or a job should grow."""
    ROUND = 7


_MARK = {Kind.END: "version", Kind.CROSSING: "placed_s", Kind.WAKE: "wake_s"}
"""Kind -> field of its subject; the event is void once that has changed."""


class EventClock:
    """The time of a run, and its coming events. ``round_s``: as of `SimSettings`."""

    def __init__(self, round_s: float | None) -> None:
        self.round_s = round_s
        self.now = 0.0
        self.planned_at = -math.inf
        """Time of the last round."""
        self.wake_s: float | None = None
        """Time of the valid ``WAKE``; None: there is none."""
        self._heap: list[tuple[float, Kind, int, Any, object]] = []
        """Time, kind, number, subject, and its mark when the event was added."""
        self._numbers = count()

    def add(self, time: float, kind: Kind, subject: Any = None) -> None:
        """Add an event of a job (``subject``); one of the past happens now."""
        mark = getattr(subject, _MARK[kind]) if kind in _MARK else None
        heapq.heappush(self._heap, (time, kind, next(self._numbers), subject, mark))

    def wake_at(self, time: float | None) -> None:
        """Replace the ``WAKE``; None: there is to be none."""
        if time != self.wake_s:
            self.wake_s = time
            if time is not None:
                self.add(time, Kind.WAKE, self)

    def pop(self) -> tuple[float, Kind, Any] | None:
        """Remove the next event that is not void; return its time, kind and subject."""
        while self._heap:
            time, kind, _, subject, mark = heapq.heappop(self._heap)
            if kind not in _MARK or getattr(subject, _MARK[kind]) == mark:
                if kind is Kind.WAKE:
                    self.wake_s = None
                return time, kind, subject
        return None

    def next_round(self) -> float:
        """First time, now or later, at which a round may run."""
        if self.round_s is None:
            return self.now
        boundary = math.ceil(self.now / self.round_s) * self.round_s
        return boundary if boundary > self.planned_at else self.planned_at + self.round_s
