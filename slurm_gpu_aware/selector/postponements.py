"""Postponements: since when jobs wait by choice for GPUs on which they end sooner.

The planner limits the whole wait from the first postponement on. The times are kept in memory, and
in the record of waiting jobs in the ledger, which a restarted selector reads. A time that is lost
only begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter

__all__ = ["Postponements"]


class Postponements:
    """Job id -> first postponement, Unix time in seconds."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._since: dict[str, float] | None = None

    def noted(self, queue: Sequence[Request]) -> list[Request]:
        """The requests with the times at which they were first postponed."""
        since = self._known()
        return [
            replace(request, postponed_since_s=since[request.job_id])
            if request.job_id in since
            else request
            for request in queue
        ]

    def note(self, plan: Plan, now: float) -> None:
        """Note the jobs that a round postponed, and drop those that it placed."""
        since = self._known()
        for waiting in plan.waiting:
            if waiting.postponed:
                since.setdefault(waiting.job_id, now)
        for assignment in plan.assignments:
            since.pop(assignment.job_id, None)

    def times(self, waiting: Waiting) -> dict[str, float]:
        """Times of a waiting job for its record; empty unless it was postponed before."""
        since = self._known().get(waiting.job_id)
        times = {} if since is None else {"postponed_since_s": since}
        if waiting.expected_start_s is not None:
            times["expected_start_s"] = waiting.expected_start_s
        return times

    def forget(self, known: Set[str]) -> None:
        """Drop jobs that are gone. ``known`` has an unsplit array under its number."""
        since = self._known()
        for job_id in list(since):
            if job_id not in known and job_id.partition("_")[0] not in known:
                del since[job_id]

    def _known(self) -> dict[str, float]:
        if self._since is None:
            self._since = _recorded(self._ledger.last_waiting())
        return self._since


def _recorded(entries: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """The times in the record of a round."""
    times = ((str(e.get("job_id")), e.get("postponed_since_s")) for e in entries)
    return {
        job_id: float(since)
        for job_id, since in times
        if isinstance(since, int | float) and math.isfinite(since)
    }
