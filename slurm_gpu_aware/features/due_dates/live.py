"""Due dates of the selector's jobs: what is known of their work."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.settings import DueDatesConfig
from slurm_gpu_aware.features.estimates.live import Estimates
from slurm_gpu_aware.features.moves.under_way import MovesUnderWay
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.candidates import Candidate


class DueDates:
    """Adds what is known to the due dates of requests."""

    def __init__(self, config: DueDatesConfig, estimates: Estimates, moves: MovesUnderWay) -> None:
        self._weights = config.weights
        self._estimates, self._moves = estimates, moves

    @property
    def unread(self) -> bool:
        """Whether earlier runs are being read for the first time."""
        return self._estimates.reader.is_first

    def dated(self, gated: GatedJob, request: Request, restart_s: float | None) -> Request:
        """The request with earlier runs, and what the job did before its last move.

        ``restart_s``: None: the job cannot grow while it runs.
        """
        due = request.get(DUE_DATE)
        if due is None:
            return request
        last = self._moves.last(gated.id)
        known = replace(
            due,
            runs=self._estimates.runs(gated.job),
            nodes=self._estimates.nodes(gated.job),
            done=0.0 if last is None else last.work_done,
            weight=self._weights.get(gated.job.qos or "", 1.0),
            restart_s=restart_s,
        )
        return request.put(DUE_DATE, known)

    def queue(
        self,
        requests: Iterable[Request],
        candidates: Mapping[str, Candidate],
        restart_s: Callable[[GatedJob, Request], float | None],
    ) -> list[Request]:
        """The queue of a round with what is known; ``restart_s``: as of `dated`."""
        dated = []
        for request in requests:
            if request.get(DUE_DATE) is not None:
                gated = candidates[request.job_id].gated
                request = self.dated(gated, request, restart_s(gated, request))
            dated.append(request)
        return dated
