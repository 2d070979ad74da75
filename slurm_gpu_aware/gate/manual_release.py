"""Release by hand: the gate opens for some or all parked jobs at an operator's command."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_jobs
from slurm_gpu_aware.gate.release import release
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import array_tasks, split_arrays

__all__ = ["release_by_hand"]


def release_by_hand(
    client: SlurmClient, config: Config, job_ids: Sequence[str] | None
) -> list[str]:
    """Open the gate for these jobs (ids as users type them; None: all parked ones).

    ``98`` names a job, or all parked tasks of array 98; ``98_3`` names one task. Returns the ids of
    the released jobs.

    Raises
    ------
    SourceError
        A named job is not parked, or would wait behind an earlier task of its array that stays
        parked, or Slurm refused an update.
    """
    jobs = client.jobs()
    parked = [job for job in gated_jobs(jobs, config.gate) if job.closed]
    if job_ids is None:
        chosen = parked
    else:
        chosen = []
        for job_id in job_ids:
            named = [match for job in parked if (match := _named(job_id, job)) is not None]
            if not named:
                raise SourceError(f"job {job_id} is not parked; see 'gpu-aware queue'")
            chosen += named
        _check_order(chosen, parked)
    wrong = release(
        client, config.gate, chosen, time.time(), then=JobPhase.OPENED, split=split_arrays(jobs)
    ).wrong
    if wrong:
        job_id, why = next(iter(wrong.items()))
        raise SourceError(f"Slurm refused to open the gate of job {job_id}: {why}")
    return [job.id for job in chosen]


def _check_order(chosen: Sequence[GatedJob], parked: Sequence[GatedJob]) -> None:
    """Refuse a task that would not start because an earlier task of its array stays parked.

    After Slurm rejects a task in a pass, it skips the later tasks of that array. Only a task with a
    record of its own has this effect; the unsplit rest comes last. Raises SourceError.
    """
    named = {job.id for job in chosen}
    for job in chosen:
        earlier = [
            other.id
            for other in parked
            if job.job.array_id is not None
            and other.job.array_id == job.job.array_id
            and other.job.array_tasks is None
            and other.id not in named
            and _task(other) < _task(job)
        ]
        if earlier:
            first = min(earlier, key=lambda job_id: int(job_id.partition("_")[2]))
            raise SourceError(
                f"job {job.id} would not start before {first}, an earlier task of its array that"
                f" is parked: release {first} first"
            )


def _task(job: GatedJob) -> float:
    """Task number of a record; infinite for an unsplit rest, which comes last."""
    task = job.id.partition("_")[2]
    return float(task) if task else float("inf")


def _named(job_id: str, gated: GatedJob) -> GatedJob | None:
    """The job if the id names it, or one task of an unsplit array; None: another job."""
    job = gated.job
    if job_id in (job.id, str(job.raw_id), str(job.array_id)):
        return gated
    array, _, task = job_id.partition("_")
    if not task.isdigit() or job.array_tasks is None or array != str(job.array_id):
        return None
    if int(task) not in array_tasks(job.array_tasks):
        return None
    return gated.task(f"{array}_{int(task)}")
