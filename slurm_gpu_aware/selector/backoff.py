"""How long a job that could not start is not planned again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["STALE_S", "Backoff"]

STALE_S = 5.0
"""Slurm shows the old reason until its scheduler has looked at the job."""
_HELD_S = 2.0
_DOUBLINGS = 16
"""Enough for every limit; keeps the numbers small."""


@dataclass
class Backoff:
    """How long a job that could not start is not planned again: doubling, up to 16 times.

    A job that Slurm shows as held by something is looked at again soon: once it is parked, its
    reason says for how long it is held. But Slurm shows no reason, too, each time that it has not
    looked at the job yet, so that only ``Licenses`` says that nothing else holds it. One that did
    not start for no visible reason waits longer.

    Some things that hold a job show only while it is pinned (a maintenance of its node): parked it
    shows ``Licenses`` at once. So where nothing else was shown in between, the short wait doubles
    as well, and such a job blocks its node ever more seldom.
    """

    base_s: float
    timer: Callable[[], float] = time.monotonic
    """Seconds of a clock that is never set."""
    _until: dict[str, float] = field(default_factory=dict)
    _doubtful: dict[str, float] = field(default_factory=dict)
    """Until when no other reason than ``Licenses`` is believed."""
    _count: dict[str, int] = field(default_factory=dict)
    _blind: dict[str, int] = field(default_factory=dict)
    """How often a job was held while pinned without having shown by what while parked."""
    _punished: dict[str, float] = field(default_factory=dict)
    _misplaced: set[str] = field(default_factory=set)

    def misplaced(self, job_id: str) -> bool:
        """Whether the job could not start before where it was placed, and nothing else held it."""
        return job_id in self._misplaced

    def punish(self, job_id: str, *, held: bool = False, misplaced: bool = False) -> float:
        """Hold a job back once more; return for how many seconds.

        ``held``: Slurm showed why. ``misplaced``: it was placed, and its place was the reason.
        """
        if misplaced:
            self._misplaced.add(job_id)
        now = self.timer()
        count = self._count.get(job_id, 0)
        self._count[job_id] = count + 1
        self._punished[job_id] = now
        long_s = wait_s = self.base_s * (1 << min(count, 4))
        if held:
            blind = self._blind.get(job_id, 0)
            self._blind[job_id] = min(blind + 1, _DOUBLINGS)
            wait_s = min(_HELD_S * (1 << blind), long_s)
        self._until[job_id] = now + wait_s
        self._doubtful[job_id] = now + long_s
        return wait_s

    def shown(self, job_id: str) -> None:
        """The job, parked, shows what holds it: that does not show only while it is pinned."""
        if self.timer() - self._punished.get(job_id, -STALE_S) >= STALE_S:
            self._blind.pop(job_id, None)

    def wait_s(self, job_id: str, reason: str = "") -> float | None:
        """For how long a job that shows this reason is still held back; None: it is not."""
        now = self.timer()
        until = self._until.get(job_id, now)
        if reason != "Licenses":
            until = max(until, self._doubtful.get(job_id, now))
        return until - now if until > now else None

    def forget(self, known: set[str]) -> None:
        """Drop jobs that are gone; tasks of an unsplit array are known by the array's number."""
        gone = [j for j in list(self._count) if j not in known and j.partition("_")[0] not in known]
        for job_id in gone:
            for entries in (self._until, self._doubtful, self._count, self._blind, self._punished):
                entries.pop(job_id, None)
            self._misplaced.discard(job_id)
