"""Selection of the parked jobs that wait in the holding pool, and of those that leave it.

Only the jobs that are next in line stay in Slurm's queue, so that a pass of its scheduler is cheap.
A job for which a plan has free GPUs is taken from the pool first, and placed after Slurm has tried
it, because only then does Slurm show whether a limit holds it. Of jobs alike that a limit holds,
one stays in the queue and shows when the limit is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.selector.holding_pool import HoldingPool, ages_there
from slurm_gpu_aware.selector.placer import Candidate, task_number
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["TAKEN", "Alike", "alike", "is_limit", "limits", "placeable", "spare"]

TAKEN = "GPUs are free for it; it is placed as soon as Slurm has checked its limits"
"""Why a job waits that was taken from the pool."""
_MAX_JOBS = 500
"""Jobs that one round puts into the pool; 2 ms each."""
_NO_TASK = 1 << 62

Alike = tuple[object, ...]


def is_limit(reason: str) -> bool:
    """Whether a reason is a limit of accounting, which Slurm checks only when it tries a job."""
    return reason.startswith(("QOS", "Assoc"))


def alike(job: SlurmJob) -> Alike:
    """Key of jobs that a limit holds all or none of."""
    asked = tuple(sorted(job.req_tres.items()))
    limit = (job.time_limit_s, job.time_min_s)
    return (job.user, job.account, job.qos, job.partitions, asked, *limit)


def limits(jobs: Iterable[SlurmJob]) -> dict[Alike, SlurmJob]:
    """For each kind of jobs the first one, not in a pool, that a limit holds."""
    limited: dict[Alike, SlurmJob] = {}
    for job in jobs:
        if job.holding_pool is None and is_limit(job.reason):
            limited.setdefault(alike(job), job)
    return limited


def spare(
    jobs: Sequence[GatedJob], plannable: Set[str], room: int, split: Set[int]
) -> list[SlurmJob]:
    """Parked jobs that need not stay in Slurm's queue.

    Parameters
    ----------
    jobs : parked jobs in Slurm's order, none of them in a closed pool.
    plannable : reasons of jobs that only the gate holds.
    room : how many stay in the queue.
    split : arrays of several records; an update of the unsplit rest would change all of them.
    """
    tried = [
        gated.job
        for gated in jobs
        if gated.job.reservation is None
        and (gated.job.reason in plannable or is_limit(gated.job.reason) or gated.only_deferred)
    ]
    if len(tried) <= room:
        return []
    shown = {job.id for job in limits(tried).values()}
    return [
        job
        for job in tried[room:]
        if ages_there(job)
        and job.id not in shown
        and not (job.array_tasks is not None and job.array_id in split)
    ][:_MAX_JOBS]


def placeable(
    assignments: Sequence[Assignment], candidates: Mapping[str, Candidate], pool: HoldingPool
) -> tuple[list[Assignment], list[GatedJob]]:
    """(Assignments that can be placed now, jobs that Slurm must try first).

    After Slurm rejects a task of an array in a pass, it rejects the later ones.
    """
    chosen = {a.job_id: candidates[a.job_id].gated for a in assignments}
    waits = [g for g in chosen.values() if pool.holds(g.job) or pool.awaits(g.job)]
    first: dict[int, int] = {}
    for job in (gated.job for gated in waits):
        if job.array_id is not None:
            first[job.array_id] = min(task_number(job.id), first.get(job.array_id, _NO_TASK))
    stay = {gated.id: gated for gated in waits}
    for job_id, gated in chosen.items():
        if task_number(job_id) > first.get(gated.job.array_id or 0, _NO_TASK):
            stay.setdefault(job_id, gated)
    return [a for a in assignments if a.job_id not in stay], list(stay.values())
