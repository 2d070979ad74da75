"""Begin of the wait of requeued jobs, for which Slurm only has the time of the requeue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.records import SlurmJob

_AGAIN_S = 60.0
"""Time after which the ledger is asked again for what it lacked: the store may have failed."""


@dataclass
class FirstSubmissions:
    """Adds them to requests, from the ledger's decisions. One that it lacks is not known."""

    ledger: LedgerWriter
    timer: Callable[[], float]
    known: dict[str, tuple[float | None, float]] = field(default_factory=dict)
    """Requeued job of the queue -> when it began to wait, Unix seconds, and when it was asked."""

    def noted(self, queue: Sequence[Request], candidates: Mapping[str, Candidate]) -> list[Request]:
        """The queue with what is known."""
        jobs = {request.job_id: candidates[request.job_id].gated.job for request in queue}
        again = {job_id: job for job_id, job in jobs.items() if job.restarts}
        now, known = self.timer(), self.known
        self.known = {
            job_id: (self._first(job_id, job), now)
            if (one := known.get(job_id)) is None or (one[0] is None and now - one[1] > _AGAIN_S)
            else one
            for job_id, job in again.items()
        }
        firsts = {job_id: first_s for job_id, (first_s, _) in self.known.items()}
        return [
            replace(request, wait=replace(request.wait, first_submit_s=first_s))
            if (first_s := firsts.get(request.job_id)) is not None
            else request
            for request in queue
        ]

    def _first(self, job_id: str, job: SlurmJob) -> float | None:
        """The earliest begin of a wait with which it was placed; ids of other users' jobs may
        repeat."""
        placed = [one for one in self.ledger.decisions(job_id) if one.user == job.user]
        waits = (float(one.asked.get("waits_since_s", one.submitted_at)) for one in placed)
        return min(waits, default=None)
