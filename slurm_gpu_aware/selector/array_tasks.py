"""Tasks of arrays in a round: their ids, their order, and how many may start."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob, array_tasks

log = logging.getLogger(__name__)

_MAX_TASKS = 500  # array tasks of one array that one round plans


class TaskOrder:
    """Keeps the tasks of an array in their order.

    After Slurm rejects a record in a pass, it skips the later records of that array. So a parked
    task with a record of its own keeps later tasks from starting, even if their gate is open. The
    unsplit rest comes last of those with its priority: it blocks tasks with a lower one.
    """

    def __init__(self) -> None:
        self._waiting: dict[int | None, float] = {}
        """Array -> priority below which its tasks are blocked."""

    def waits(self, job: SlurmJob, *, unsplit: bool = False) -> None:
        """Note that a parked job, or a task of an unsplit rest, does not start now."""
        if job.array_id is not None:
            rest = unsplit or job.array_tasks is not None
            below = float(job.priority) if rest else math.inf
            self._waiting[job.array_id] = max(below, self._waiting.get(job.array_id, below))

    def blocks(self, job: SlurmJob) -> bool:
        """Whether an earlier record of the job's array waits."""
        return job.priority < self._waiting.get(job.array_id, -math.inf)


def task_ids(job: SlurmJob) -> list[str]:
    """The job's id, or those of the tasks that its record still holds."""
    if job.array_tasks is None:
        return [job.id]
    try:
        tasks = array_tasks(job.array_tasks)
    except ValueError as exc:
        log.warning("job %s: %s", job.id, exc)
        return []
    return [f"{job.array_id}_{task}" for task in tasks[:_MAX_TASKS]]


def task_room(jobs: Sequence[SlurmJob], licence: str) -> dict[int, int]:
    """Array with a ``%limit`` -> tasks that may start beside those that run or are about to."""
    room = {job.array_id: job.array_limit for job in jobs if job.array_id and job.array_limit}
    for job in jobs:
        starts = job.state == "PENDING" and not job.licence_count(licence)
        if job.array_id in room and job.array_tasks is None and (job.state in HOLDING or starts):
            room[job.array_id] -= 1
    return room
