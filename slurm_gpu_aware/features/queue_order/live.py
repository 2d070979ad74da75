"""Order of the queue: the site's rule, and when requeued jobs began to wait.

Slurm only has the time of the requeue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from slurm_gpu_aware.features.queue_order.declared import QueueConfig
from slurm_gpu_aware.features.queue_order.stage import RULE, OrderRule, rule_of
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.live import Live, Seen, Site
from slurm_gpu_aware.slurm.records import SlurmJob

_AGAIN_S = 60.0
"""Time after which the ledger is asked again for what it lacked: the store may have failed."""


class FirstSubmissions(Live):
    """Tells the rule, and the first submissions from the ledger's decisions, as far as it knows."""

    name = "order of the queue"
    tells = (RULE,)

    def __init__(self, site: Site) -> None:
        self._ledger, self._timer = site.ledger, site.timer
        self._config = site.config.of(QueueConfig)
        self.known: dict[str, tuple[float | None, float]] = {}
        """Requeued job of the queue -> when it began to wait, Unix seconds, and when it was
        asked."""

    @property
    def opens_ahead(self) -> bool:
        """Not where jobs start in another order than Slurm's."""
        return not rule_of(self._config).exchanges

    def inputs(self, seen: Seen) -> Iterator[tuple[Facet[OrderRule], OrderRule]]:
        """The rule."""
        yield RULE, rule_of(self._config, seen.context.slurm.age_per_s)

    def requests(self, jobs: Mapping[str, Candidate], queue: Sequence[Request]) -> list[Request]:
        """The queue with the first submissions."""
        own = {request.job_id: jobs[request.job_id].gated.job for request in queue}
        again = {job_id: job for job_id, job in own.items() if job.restarts}
        now, known = self._timer(), self.known
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
        placed = [one for one in self._ledger.decisions(job_id) if one.user == job.user]
        waits = (float(one.asked.get("waits_since_s", one.submitted_at)) for one in placed)
        return min(waits, default=None)


LIVES = (FirstSubmissions,)
