"""Jobs as Slurm shows them now, with the meaning of their state for the gate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import is_ours
from slurm_gpu_aware.gate.gated_job import gated_job
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import ENDED, SlurmJob, array_tasks

__all__ = ["LiveJob", "find_job", "live_job", "live_jobs", "parked_of"]


@dataclass(frozen=True)
class LiveJob:
    """A job as Slurm shows it to every user."""

    id: str
    """``98``, or ``98_3`` for an array task."""
    raw_id: int
    """Slurm's number of the record."""
    array_id: int | None
    array_tasks: str | None
    """Tasks of an unsplit array record; None: a single job or task."""
    shown: str
    """The id with the tasks of an unsplit array record: ``98_[1-3]``."""
    user: str
    state: str
    ended: bool
    """Slurm is done with it."""
    reason: str
    parked: bool
    """It waits at the gate."""
    pooled: bool
    """It is in the holding pool."""
    placed_at: float | None
    """When the selector placed it, Unix seconds; None: not placed."""
    ours: bool
    """The filter parked it at submission."""
    by_hand: bool
    """Its gate was opened for good: by an operator, or by the selector, which left it to Slurm."""
    passed: bool
    """It started with the gate's licence: the gate was open because the selector did not run."""
    gpus: int | None
    """None: Slurm does not count GPUs (AccountingStorageTRES lacks gres/gpu)."""
    submit_s: float
    priority: int


def live_jobs(config: Config) -> list[LiveJob] | None:
    """All jobs that Slurm shows; None if it does not answer."""
    try:
        jobs = open_client(config.selector.command_timeout_s).jobs()
    except SourceError:
        return None
    return [live_job(job, config) for job in jobs]


def parked_of(jobs: Iterable[LiveJob]) -> list[LiveJob]:
    """Jobs that wait at the gate, by priority as in Slurm."""
    parked = [job for job in jobs if job.parked]
    return sorted(parked, key=lambda j: (-j.priority, j.submit_s, j.id))


def find_job(jobs: Iterable[LiveJob], job_id: str) -> LiveJob | None:
    """One job by the id that users type or by Slurm's number; None: there is no such job."""
    for job in jobs:
        if job_id in (job.id, str(job.raw_id)) or _is_task_of(job_id, job):
            return job
    return None


def live_job(job: SlurmJob, config: Config) -> LiveJob:
    """The view of one job."""
    gated = gated_job(job, config.gate)
    marker = gated.marker if gated is not None else None
    # In the pool, on its way there, and until Slurm tries it again, it waits as at the gate.
    waits_for_us = job.reason == "Reservation" and job.reservation is None
    waits_for_us = waits_for_us or (gated is not None and gated.only_deferred)
    asks = job.licence_count(config.gate.licence) > 0
    shown = f"{job.id}_[{job.array_tasks}]" if job.array_tasks else job.id
    return LiveJob(
        id=job.id,
        raw_id=job.raw_id,
        array_id=job.array_id,
        array_tasks=job.array_tasks,
        shown=shown,
        user=job.user,
        state=job.state,
        ended=job.state in ENDED,
        reason="Licenses" if waits_for_us else job.reason,
        parked=gated is not None and gated.closed,
        pooled=job.holding_pool is not None,
        placed_at=marker.at if marker is not None and marker.phase is JobPhase.RELEASED else None,
        ours=is_ours(job.admin_comment),
        by_hand=marker is not None and marker.phase in (JobPhase.LEFT, JobPhase.OPENED),
        passed=job.state != "PENDING" and asks and bool(job.nodes),
        gpus=job.req_tres.get("gres/gpu"),
        submit_s=job.submit_s,
        priority=job.priority,
    )


def _is_task_of(job_id: str, job: LiveJob) -> bool:
    """Whether ``98_5`` is one of the tasks of an unsplit array record."""
    array, _, task = job_id.partition("_")
    if not task or not job.array_tasks or str(job.array_id) != array:
        return False
    try:
        return int(task) in array_tasks(job.array_tasks.partition("%")[0])
    except ValueError:
        return False
