"""Gated job: a job that the filter has parked, with its record, its marker and its phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.gate.job_marker import BOUND, JobMarker, marker_of, unmarked
from slurm_gpu_aware.gate.request_forms import is_bound
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob

__all__ = ["GatedJob", "gated_job", "gated_jobs"]

_CLOSED = frozenset({JobPhase.WAITING, JobPhase.HELD, JobPhase.PREPARED})


@dataclass(frozen=True)
class GatedJob:
    """A job of ours as Slurm shows it."""

    job: SlurmJob
    original: OriginalRequest
    """What its user asked for, as the filter recorded it."""
    marker: JobMarker | None
    phase: JobPhase
    """Never ``planned``: that is known to the ledger only."""

    @property
    def id(self) -> str:
        """As users type it: ``98``, or ``98_3`` for an array task."""
        return self.job.id

    @property
    def closed(self) -> bool:
        """It is pending and the gate keeps it from starting."""
        return self.phase in _CLOSED

    @property
    def released(self) -> bool:
        """It is pending with a binding of ours, and the gate is open."""
        return self.phase in (JobPhase.RELEASED, JobPhase.REQUEUED)

    @cached_property
    def deferred(self) -> bool:
        """Its begin time is the one that the filter gave it.

        Another eligible time is one that a user or Slurm (requeue) has set since.
        """
        begin_s = self.original.begin_s
        return begin_s is not None and self.job.eligible_s == begin_s

    @property
    def only_deferred(self) -> bool:
        """Slurm shows as reason the begin time that the filter gave it."""
        return self.job.reason == "BeginTime" and self.deferred

    @property
    def record(self) -> str:
        """Its AdminComment as the filter wrote it."""
        return unmarked(self.job.admin_comment or "")

    def task(self, job_id: str) -> GatedJob:
        """One task of an unsplit array's record, as a record of its own."""
        if job_id == self.id:
            return self
        return replace(self, job=replace(self.job, id=job_id, array_tasks=None))

    def as_seen(self, job: SlurmJob, gate: GateConfig) -> GatedJob:
        """The same request in a newer record of the job."""
        marker = marker_of(job.admin_comment) or self.marker
        return replace(self, job=job, marker=marker, phase=_phase(job, self.original, marker, gate))


def gated_job(job: SlurmJob, gate: GateConfig) -> GatedJob | None:
    """The job, read; None for one that the filter has not parked or whose record is lost."""
    original = parse(job.admin_comment)
    if original is None:
        return None
    marker = marker_of(job.admin_comment)
    return GatedJob(job, original, marker, _phase(job, original, marker, gate))


def gated_jobs(jobs: Iterable[SlurmJob], gate: GateConfig) -> list[GatedJob]:
    """All gated jobs among ``jobs``, in their order."""
    return [found for job in jobs if (found := gated_job(job, gate)) is not None]


def _phase(
    job: SlurmJob, original: OriginalRequest, marker: JobMarker | None, gate: GateConfig
) -> JobPhase:
    if job.state in HOLDING:
        return JobPhase.STARTED
    if job.state != "PENDING":
        return JobPhase.ENDED
    bound = _is_bound(job, original, marker)
    if job.licence_count(gate.licence):
        if bound:
            return JobPhase.PREPARED
        return JobPhase.HELD if job.holding_pool is not None else JobPhase.WAITING
    if not bound:
        return marker.phase if marker is not None else JobPhase.OPENED
    came_back = marker is not None and job.restarts > marker.restarts
    return JobPhase.REQUEUED if came_back else JobPhase.RELEASED


def _is_bound(job: SlurmJob, original: OriginalRequest, marker: JobMarker | None) -> bool:
    if marker is not None:
        return marker.phase in BOUND
    try:
        return is_bound(job, original)
    except SourceError:
        return False  # a request that cannot be read is one that was never bound
