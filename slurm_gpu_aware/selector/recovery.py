"""Parking again: jobs whose gate we opened and that do not start, or that came back.

Closing the gate comes first and alone: for a job that has started meanwhile an update of its
licences does no harm, but one of its nodes would shrink it. Only what reads back as parked is
then unpinned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from slurm_gpu_aware.admission.snapshot import NODE_TAKEN
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.deferral import only_deferred
from slurm_gpu_aware.gate.holding_pool import open_fields
from slurm_gpu_aware.gate.job_marker import HAND, mark_of
from slurm_gpu_aware.gate.licence_gate import closed_licences, is_parked
from slurm_gpu_aware.gate.request_forms import is_pinned
from slurm_gpu_aware.gate.restore import undo_fields
from slurm_gpu_aware.selector.backoff import STALE_S, Backoff
from slurm_gpu_aware.selector.job_tracker import Tracked, Watch
from slurm_gpu_aware.selector.ledger_writer import Books
from slurm_gpu_aware.slurm.client import JobUpdate, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, update_ids

__all__ = ["FEW", "Recovery", "in_parts", "is_released"]

log = logging.getLogger(__name__)

FEW = 20
"""So many jobs are read one by one; for more, reading all takes less."""
_AT_ONCE = 100
"""Updates, 2 to 5 ms each, that are sent without a look in between."""

_STARTING = frozenset(
    {
        "None",
        "Priority",
        "Resources",
        "Cleaning",
        NODE_TAKEN,  # by another job that is placed there and goes first
    }
)
"""Reasons of a placed job that is about to start."""
_NEVER_THERE = "held by BadConstraints"
"""Slurm finds that it can never start on the nodes that it was given."""


def in_parts(updates: Sequence[JobUpdate]) -> Iterator[Sequence[JobUpdate]]:
    """Updates in their order, in parts that take no longer than a look at others may wait."""
    for start in range(0, len(updates), _AT_ONCE):
        yield updates[start : start + _AT_ONCE]


def is_released(job: SlurmJob, config: Config) -> bool:
    """Pending, ours, the gate open by us: pinned or marked, and not opened by an operator."""
    if job.state != "PENDING":  # first: most records are of jobs that have ended
        return False
    original = parse(job.admin_comment)
    if original is None or is_parked(job, config.gate):
        return False
    mark = mark_of(job.admin_comment)
    if mark is not None:
        return mark.state != HAND
    try:
        return is_pinned(job, original)
    except SourceError:
        return False  # a request that we cannot read is one that we never pinned


def _is_stale(job: SlurmJob, tracked: Tracked | None, open_s: float) -> bool:
    """Whether the reason may be the gate's, or the filter's begin time: Slurm has not looked since.

    ``open_s``: how long the gate has been open. Of a job that Slurm has tried later than in the
    second in which it was opened, ``Licenses`` means another licence.
    """
    if open_s >= STALE_S:
        return False
    if only_deferred(job):
        return True
    if job.reason != "Licenses":
        return False
    opened_at = tracked.opened_at if tracked is not None else None
    tried = opened_at is not None and job.looked_at_s is not None and job.looked_at_s > opened_at
    return not tried


class Recovery:
    """Finds jobs that must be parked again, and parks them."""

    def __init__(
        self, client: SlurmClient, config: Config, books: Books, watch: Watch, backoff: Backoff
    ) -> None:
        self._client = client
        self._config = config
        self._books = books
        self._watch = watch
        self._backoff = backoff
        self._timer = backoff.timer  # a clock that is set must not keep a job pinned
        self._first_seen: dict[str, float] = {}
        self.grace_s = 0.0
        """How much longer a job that preempts others may take: its victims may go on so long."""

    def due(
        self, jobs: Sequence[SlurmJob], lost_nodes: frozenset[str], *, some: bool = False
    ) -> dict[str, str]:
        """Why, for each job whose gate must be closed again. ``lost_nodes``: cannot be used.

        ``some``: there are other jobs, which are not looked at now.
        """
        released = [job for job in jobs if is_released(job, self._config)]
        if not some:
            current = {job.id for job in released}
            self._first_seen = {j: t for j, t in self._first_seen.items() if j in current}
        found: dict[str, str] = {}
        now = self._timer()
        for job in released:
            why = self._why(job, lost_nodes, now)
            if why is not None:
                found[job.id] = why
        return found

    def _why(self, job: SlurmJob, lost_nodes: frozenset[str], now: float) -> str | None:
        first = self._first_seen.setdefault(job.id, now)
        tracked = self._watch.placed.get(job.id)
        since = tracked.opened if tracked and tracked.opened is not None else first
        mark = mark_of(job.admin_comment)
        if mark is not None and job.restarts > mark.restarts:
            return "requeued"
        lost = sorted(lost_nodes.intersection(job.req_nodes))
        if lost:
            return f"node {lost[0]} cannot be used"
        if job.reason not in _STARTING and not _is_stale(job, tracked, now - since):
            return f"held by {job.reason}"
        limit_s = self._config.selector.start_timeout_s
        limit_s += self.grace_s if tracked is not None and tracked.victims else 0.0
        if now - since > limit_s:
            return f"not started within {limit_s:g} s"
        return None

    def park_again(self, jobs: Mapping[str, SlurmJob], due: Mapping[str, str], now: float) -> int:
        """Close the gate of these jobs and clear every pin; return how many are parked now."""
        if not due:
            return 0
        with self._books.later():  # until they are unpinned they keep their node from others
            return self._park_again(jobs, due, now)

    def _park_again(self, jobs: Mapping[str, SlurmJob], due: Mapping[str, str], now: float) -> int:
        updates = []
        for job_id in due:
            original = parse(jobs[job_id].admin_comment)
            if original is None:
                continue
            try:
                closed = closed_licences(original, self._config.gate)
                updates.append(JobUpdate(job_id, (("Licenses", closed),)))
            except ValueError as exc:
                log.warning("job %s cannot be parked again: %s", job_id, exc)
        refused = self._client.update_jobs(updates)
        few = len(due) <= FEW
        read = self._client.jobs_of(list(due)) if few else self._client.jobs()
        seen = {job.id: job for job in read}
        parked: list[SlurmJob] = []
        for job_id, why in due.items():
            job = seen.get(job_id)
            if job is None:
                continue
            if is_parked(job, self._config.gate):
                parked.append(job)
                self._write(job, why, now)
            elif job.state == "PENDING":
                log.warning(
                    "job %s (%s) could not be parked again: %s",
                    job_id,
                    why,
                    refused.get(job_id, "its licences did not change"),
                )
        self._give_back([job for job in seen.values() if job.id in due], now)
        self.unpin(parked)
        return len(parked)

    def unpin(
        self,
        jobs: Sequence[SlurmJob],
        split: Set[int] = frozenset(),
        between: Callable[[], object] = lambda: None,
    ) -> None:
        """Give parked jobs back their original request; nothing is sent for those that have it.

        ``split``: arrays of which tasks stand in records of their own; see `update_ids`.
        ``between``: called before each part of what is sent.
        """
        updates = []
        for job in jobs:
            original = parse(job.admin_comment)
            try:
                fields = undo_fields(job, original) if original is not None else ()
                if fields:
                    updates += [JobUpdate(job_id, fields) for job_id in update_ids(job, split)]
            except (SourceError, ValueError) as exc:
                log.warning("job %s cannot be given back its request: %s", job.id, exc)
        for part in in_parts(updates):
            between()
            for job_id, why in self._client.update_jobs(part).items():
                log.warning(
                    "job %s could not be unpinned, tried again in the next round: %s", job_id, why
                )

    def _give_back(self, jobs: Sequence[SlurmJob], now: float) -> None:
        """A job that started while its gate was being closed does not need the licence."""
        updates = []
        for job in jobs:
            original = parse(job.admin_comment)
            if (
                job.state != "PENDING"
                and original is not None
                and job.licence_count(self._config.gate.licence)
            ):
                updates.append(JobUpdate(job.id, open_fields(job, original, now)))
        self._client.update_jobs(updates)

    def _write(self, job: SlurmJob, why: str, now: float) -> None:
        tracked = self._watch.placed.pop(job.id, None)
        detail = {"why": why, "restarts": job.restarts}
        if tracked is not None:
            self._books.outcome(tracked.decision, "reparked", now, detail)
        self._books.event(job.id, "reparked", detail, now)
        if why == "requeued" or why.startswith("node "):
            log.info("job %s parked again: %s", job.id, why)
            return
        held = why.startswith("held by ")
        misplaced = not held or why == _NEVER_THERE
        wait_s = self._backoff.punish(job.id, held=held, misplaced=misplaced)
        log.warning("job %s parked again: %s; not planned for %.0f s", job.id, why, wait_s)
