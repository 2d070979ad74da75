"""Task order: the order of parked jobs and of the tasks of an array."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.placer import Candidate
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["TaskOrder", "in_task_order", "queue_order"]


def queue_order(job: SlurmJob) -> tuple[float, float, int, float]:
    """Sort key of Slurm's order: priority, age, number; tasks of one array by task number."""
    _, _, task = job.id.partition("_")
    number = float(task) if task else float("inf")
    return -job.priority, job.submit_s, job.array_id or job.raw_id, number


class TaskOrder:
    """Keeps the tasks of an array in their order.

    After Slurm's scheduler rejects a record in a pass, it skips the later records of that array. So
    a parked task with a record of its own keeps later tasks from starting, even if their gate is
    open. The unsplit rest comes last of those with its priority: it blocks tasks with a lower one.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, float] = {}
        """Array -> priority below which its tasks are blocked."""

    def waits(self, job: SlurmJob, *, unsplit: bool = False) -> None:
        """Note that a parked job, or a task of an unsplit rest, does not start now."""
        if job.array_id is not None:
            rest = unsplit or job.array_tasks is not None
            below = float(job.priority) if rest else math.inf
            self._waiting[job.array_id] = max(below, self._waiting.get(job.array_id, below))

    def blocks(self, job: SlurmJob) -> bool:
        """Whether an earlier record of the job's array waits."""
        below = self._waiting.get(job.array_id) if job.array_id is not None else None
        return below is not None and job.priority < below


def in_task_order(plan: Plan, candidates: Mapping[str, Candidate]) -> Plan:
    """The plan without tasks that an earlier unplaced task of their array blocks."""
    chosen = {assignment.job_id for assignment in plan.assignments}
    order, blocked = TaskOrder(), set()
    for job_id, candidate in candidates.items():  # in queue order
        if order.blocks(candidate.gated.job):
            blocked.add(job_id)
        elif job_id not in chosen:
            order.waits(candidate.gated.job, unsplit=candidate.unsplit)
    assignments = tuple(a for a in plan.assignments if a.job_id not in blocked)
    later = tuple(
        Waiting(job_id, "an earlier task of its array goes first")
        for job_id in blocked
        if job_id in chosen
    )
    return Plan(assignments, plan.waiting + later)
