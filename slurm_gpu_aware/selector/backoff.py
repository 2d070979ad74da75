"""Back-off of jobs that could not start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["STALE_S", "Backoff"]

STALE_S = 5.0
"""Until its scheduler tries a job again, at most this long, Slurm shows the old reason."""
_HELD_S = 2.0
_DOUBLINGS = 16
"""Bounds the exponent; more than any limit needs."""


@dataclass
class Backoff:
    """Back-off of jobs that could not start: the wait doubles, up to 16 times the first.

    A job that Slurm shows as held waits only a short time: once parked, its reason tells how long
    it is held. Slurm shows no reason for a job that it has not tried yet, so only ``Licenses`` says
    that nothing else holds it. A job that did not start for no visible reason waits longer.

    Some causes show only while the job is bound (a maintenance of its node): once parked, it shows
    ``Licenses``. If no other reason was shown in between, the short wait doubles, too, so that such
    a job blocks its node ever more seldom.
    """

    base_s: float
    timer: Callable[[], float] = time.monotonic
    """Seconds of a clock that is never set."""
    _until: dict[str, float] = field(default_factory=dict)
    _doubtful: dict[str, float] = field(default_factory=dict)
    """Time until which only the reason ``Licenses`` counts."""
    _count: dict[str, int] = field(default_factory=dict)
    _blind: dict[str, int] = field(default_factory=dict)
    """How often a job was held while bound and showed no cause while parked."""
    _punished: dict[str, float] = field(default_factory=dict)
    _misplaced: set[str] = field(default_factory=set)

    def misplaced(self, job_id: str) -> bool:
        """Whether the job could not start at an earlier place, and nothing else held it."""
        return job_id in self._misplaced

    def punish(self, job_id: str, *, held: bool = False, misplaced: bool = False) -> float:
        """Hold a job back once more; return for how many seconds.

        ``held``: Slurm showed why. ``misplaced``: its place was the cause.
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
        """Note that the parked job shows what holds it, so the cause does not need a binding."""
        if self.timer() - self._punished.get(job_id, -STALE_S) >= STALE_S:
            self._blind.pop(job_id, None)

    def wait_s(self, job_id: str, reason: str = "") -> float | None:
        """Rest of the wait of a job that shows this reason; None: it is not held back."""
        now = self.timer()
        until = self._until.get(job_id, now)
        if reason != "Licenses":
            until = max(until, self._doubtful.get(job_id, now))
        return until - now if until > now else None

    def forget(self, known: set[str]) -> None:
        """Drop jobs that are gone. ``known`` has an unsplit array under its number."""
        gone = [j for j in list(self._count) if j not in known and j.partition("_")[0] not in known]
        for job_id in gone:
            for entries in (self._until, self._doubtful, self._count, self._blind, self._punished):
                entries.pop(job_id, None)
            self._misplaced.discard(job_id)
