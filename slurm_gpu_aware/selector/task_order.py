"""Task order: the order of parked jobs, and which tasks of an array may go before others."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.placer import Candidate
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["TaskOrder", "in_task_order", "queue_order"]


def queue_order(job: SlurmJob) -> tuple[float, float, int, float]:
    """Slurm's order: priority, then age, then number; tasks of one array by task number."""
    _, _, task = job.id.partition("_")
    number = float(task) if task else float("inf")
    return -job.priority, job.submit_s, job.array_id or job.raw_id, number


class TaskOrder:
    """Tasks of an array start in their order.

    Once Slurm's scheduler has rejected a task in a pass, it does not look at the later tasks of
    that array. So a task that waits at the gate as a record of its own keeps later tasks of its
    array from starting, even if their gate is open. The unsplit rest comes last and does no harm.
    """

    def __init__(self) -> None:
        self._waiting: set[int] = set()

    def waits(self, job: SlurmJob) -> None:
        """A parked job does not start now."""
        if job.array_id is not None and job.array_tasks is None:
            self._waiting.add(job.array_id)

    def blocks(self, job: SlurmJob) -> bool:
        """Whether an earlier task of the job's array waits."""
        return job.array_id in self._waiting


def in_task_order(plan: Plan, candidates: Mapping[str, Candidate]) -> Plan:
    """The plan without tasks that an earlier, split, unplaced task of their array would block."""
    chosen = {assignment.job_id for assignment in plan.assignments}
    order, blocked = TaskOrder(), set()
    for job_id, candidate in candidates.items():  # in queue order
        if order.blocks(candidate.gated.job):
            blocked.add(job_id)
        elif job_id not in chosen and not candidate.unsplit:
            order.waits(candidate.gated.job)
    kept = tuple(a for a in plan.assignments if a.job_id not in blocked)
    later = tuple(
        Waiting(job_id, "an earlier task of its array goes first")
        for job_id in blocked
        if job_id in chosen
    )
    return Plan(kept, plan.waiting + later)
