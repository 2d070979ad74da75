"""Postponements: since when jobs wait by choice for GPUs on which they end sooner.

The planner limits the whole wait from the first postponement on. The times are kept in memory, and
in the record of waiting jobs in the ledger, which a restarted selector reads. A time that is lost
only begins anew.
"""

import math
from collections.abc import Mapping, Sequence, Set

from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.live import Live, Site
from slurm_gpu_aware.selector.waiting_jobs import WaitingJobs


class Postponements(Live):
    """Job id -> its wait by choice, as the last round that let it wait saw it."""

    name = "postponements"

    def __init__(self, site: Site) -> None:
        self._ledger = site.ledger
        self._waits: dict[str, Postponement] | None = None

    def requests(self, jobs: Mapping[str, Candidate], queue: Sequence[Request]) -> list[Request]:
        """The requests with their waits."""
        waits = self._known()
        return [
            request.postponed(waits[request.job_id]) if request.job_id in waits else request
            for request in queue
        ]

    def planned(self, plan: Plan, queue: Sequence[Request]) -> Plan:
        """Note the jobs that a round postponed, and drop those that it placed."""
        waits = self._known()
        for waiting in plan.waiting:
            if waiting.postponement is not None:
                waits[waiting.job_id] = waiting.postponement
        for assignment in plan.assignments:
            waits.pop(assignment.job_id, None)
        return plan

    def changed(self, job_id: str, now: float) -> None:
        """Weigh a job anew whose owner has changed it; its wait goes on from its beginning."""
        waits = self._known()
        for other, wait in waits.items():
            if job_id in (other, other.partition("_")[0]):
                waits[other] = Postponement(wait.since_s)

    def waits(self, waiting: Waiting, plan: Plan) -> dict[str, float]:
        """Times of a waiting job for its record; empty unless it was postponed before."""
        wait = self._known().get(waiting.job_id)
        times = {} if wait is None else {"postponed_since_s": wait.since_s}
        if waiting.postponement is not None:
            times["expected_start_s"] = waiting.postponement.start_s
        return times

    def forget(self, known: Set[str]) -> None:
        """Drop jobs that are gone. ``known`` has an unsplit array under its number."""
        waits = self._known()
        for job_id in list(waits):
            if job_id not in known and job_id.partition("_")[0] not in known:
                del waits[job_id]

    def _known(self) -> dict[str, Postponement]:
        if self._waits is None:
            self._waits = _recorded(self._ledger.last_waiting())
        return self._waits


def _recorded(waiting: WaitingJobs) -> dict[str, Postponement]:
    """The waits in the record of a round, of which only the beginning counts."""
    times = ((job_id, entry.get("postponed_since_s")) for job_id, entry in waiting.each())
    return {
        job_id: Postponement(float(since))
        for job_id, since in times
        if isinstance(since, int | float) and math.isfinite(since)
    }


LIVES = (Postponements,)
