"""Due dates of the selector's jobs: what is known of their work."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_gpu_aware.features.due_dates.declared import DueDatesConfig
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, due_values
from slurm_gpu_aware.features.estimates.live import Estimates
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.live import Live, Site, Told


class DueDates(Live):
    """Adds what is known to the due dates of requests."""

    name = "due dates"

    def __init__(self, site: Site) -> None:
        self._weights = site.config.of(DueDatesConfig).weights
        self._estimates = site.of(Estimates)

    @property
    def unread(self) -> bool:
        """Whether earlier runs are being read for the first time."""
        return self._estimates.reader.is_first

    def dated(self, gated: GatedJob, request: Request) -> Request:
        """The request with earlier runs."""
        due = request.get(DUE_DATE)
        if due is None:
            return request
        known = replace(
            due,
            runs=self._estimates.runs(gated.job),
            nodes=self._estimates.nodes(gated.job),
            weight=self._weights.get(gated.job.qos or "", 1.0),
        )
        return request.put(DUE_DATE, known)

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """The same request; Slurm knows no due date."""
        if (due := request.get(DUE_DATE)) is not None:
            told.asked["due_s"], told.ahead = due.due_s, False
        return request

    def requests(self, jobs: Mapping[str, Candidate], queue: Sequence[Request]) -> list[Request]:
        """The queue of a round with what is known."""
        return [self.dated(jobs[request.job_id].gated, request) for request in queue]

    def waits(self, waiting: Waiting, plan: Plan) -> dict[str, Any]:
        """What the ledger holds of the due date."""
        return due_values(plan, waiting.job_id)


LIVES = (DueDates,)
