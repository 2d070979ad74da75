"""Counts of calls to slurmctld and of updates of jobs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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

    @contextmanager
    def updating(self, number: int) -> Iterator[dict[str, str]]:
        """Count so many updates at the end of the block, which fills in the refused ones.

        Yields refused job id -> why. A block that raises has no answer.
        """
        refused: dict[str, str] = {}
        unknown = number
        try:
            yield refused
            unknown = 0
        finally:
            done = 0 if unknown else max(0, number - len(refused))
            refusals = 0 if unknown else len(refused)
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
