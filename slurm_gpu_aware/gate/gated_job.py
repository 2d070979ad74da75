"""Gated job: a job that the filter parked, with its record, marker and phase."""

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
    """A job that the filter parked, as Slurm shows it."""

    job: SlurmJob
    original: OriginalRequest
    """The user's request, as the filter recorded it."""
    marker: JobMarker | None
    phase: JobPhase
    """Never ``planned``, which only the ledger knows."""

    @property
    def id(self) -> str:
        """Id as users type it: ``98``, or ``98_3`` for an array task."""
        return self.job.id

    @property
    def closed(self) -> bool:
        """Whether it is pending and the gate keeps it from starting."""
        return self.phase in _CLOSED

    @property
    def released(self) -> bool:
        """Whether it is pending with a binding, and the gate is open."""
        return self.phase in (JobPhase.RELEASED, JobPhase.REQUEUED)

    @cached_property
    def deferred(self) -> bool:
        """Whether its begin time is the filter's, not one that a user or a requeue set later."""
        begin_s = self.original.begin_s
        return begin_s is not None and self.job.eligible_s == begin_s

    @property
    def only_deferred(self) -> bool:
        """Whether Slurm shows the filter's begin time as the reason why it waits."""
        return self.job.reason == "BeginTime" and self.deferred

    @property
    def record(self) -> str:
        """AdminComment as the filter wrote it."""
        return unmarked(self.job.admin_comment or "")

    def task(self, job_id: str) -> GatedJob:
        """One task of an unsplit array record, as a record of its own."""
        if job_id == self.id:
            return self
        return replace(self, job=replace(self.job, id=job_id, array_tasks=None))

    def as_seen(self, job: SlurmJob, gate: GateConfig) -> GatedJob:
        """The same request in a newer record of the job."""
        marker = marker_of(job.admin_comment) or self.marker
        return replace(self, job=job, marker=marker, phase=_phase(job, self.original, marker, gate))


def gated_job(job: SlurmJob, gate: GateConfig) -> GatedJob | None:
    """The gated job; None if the filter did not park the job or its record is lost."""
    original = parse(job.admin_comment)
    if original is None:
        return None
    marker = marker_of(job.admin_comment)
    return GatedJob(job, original, marker, _phase(job, original, marker, gate))


def gated_jobs(jobs: Iterable[SlurmJob], gate: GateConfig) -> list[GatedJob]:
    """All gated jobs among ``jobs``, in their order."""
    return [gated for job in jobs if (gated := gated_job(job, gate)) is not None]


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
    requeued = marker is not None and job.restarts > marker.restarts
    return JobPhase.REQUEUED if requeued else JobPhase.RELEASED


def _is_bound(job: SlurmJob, original: OriginalRequest, marker: JobMarker | None) -> bool:
    if marker is not None:
        return marker.phase in BOUND
    try:
        return is_bound(job, original)
    except SourceError:
        return False  # a request that cannot be read was never bound
