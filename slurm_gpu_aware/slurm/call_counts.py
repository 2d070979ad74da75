"""Counts of calls to slurmctld and of updates of jobs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

CALLS = ("answered", "refused", "failed", "timeout")
"""Outcomes of a call; ``failed``: slurmctld was not reached. A call that was not waited for any
longer counts as ``timeout``, and once more when it ends."""
UPDATES = ("done", "refused", "unknown")
"""Outcomes of an update; ``unknown``: there was no answer."""


class CallCounts:
    """Counts since the start; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter(dict.fromkeys(CALLS, 0))
        self._updates: Counter[str] = Counter(dict.fromkeys(UPDATES, 0))

    def call(self, outcome: str) -> None:
        """Count a call by its outcome, one of `CALLS`."""
        with self._lock:
            self._calls[outcome] += 1

    def updated(
        self, number: int, work: Callable[[], Iterable[Mapping[str, str]]]
    ) -> dict[str, str]:
        """Do work that sends so many updates, and count them; return refused job id -> why.

        ``work`` gives the refused ones in parts. If it raises, what became of them is not known.
        """
        refused: dict[str, str] | None = None
        try:
            refused = {job_id: why for part in work() for job_id, why in part.items()}
            return refused
        finally:
            refusals = len(refused or ())
            done, unknown = (0, number) if refused is None else (max(0, number - refusals), 0)
            with self._lock:
                self._updates.update({"done": done, "refused": refusals, "unknown": unknown})

    @property
    def of_calls(self) -> Mapping[str, int]:
        """Outcome -> calls."""
        with self._lock:
            return dict(self._calls)

    @property
    def of_updates(self) -> Mapping[str, int]:
        """Outcome -> updates."""
        with self._lock:
            return dict(self._updates)
