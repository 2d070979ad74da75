"""Whom Slurm pushes out beside those who hold what a job needs.

Slurm (24.11.5, ``_run_now`` of select/cons_tres) takes running jobs away in its own order until the
job fits, twice moves the last of them to the front and tries again, and preempts all that it took
away the last time on the job's nodes. One or two victims are found exactly so. Of three and more
all but two must be the first in its order, or it preempts others of these nodes as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from slurm_gpu_aware.cluster import RunningJob

__all__ = ["in_slurms_order", "pushed_out"]

_REORDERED = 2
"""How often Slurm tries again with another order (reorder_count=1)."""


def in_slurms_order(jobs: Sequence[RunningJob]) -> list[RunningJob]:
    """Lowest tier first, then jobs on fewest nodes; ``jobs``: in the order of Slurm's records."""
    return sorted(jobs, key=lambda job: (_tier(job), len(job.gpus)))


def pushed_out(
    needed: Sequence[RunningJob], candidates: Sequence[RunningJob], nodes: Collection[int]
) -> list[RunningJob]:
    """Jobs that Slurm preempts so that all of ``needed`` are gone; these and perhaps others.

    Parameters
    ----------
    candidates : all jobs that may be preempted, in Slurm's order.
    nodes : of the job that preempts.
    """
    there = {job.job_id: sum(node in nodes for node, _ in job.gpus) for job in candidates}
    order = [job for job in candidates if there[job.job_id]]
    wanted = {job.job_id for job in needed}
    for attempt in range(_REORDERED + 1):
        last = max((i for i, job in enumerate(order) if job.job_id in wanted), default=-1)
        removed = order[: last + 1]
        if not removed or attempt == _REORDERED or len(candidates) <= attempt + 1:
            break
        earlier = sorted(removed[:-1], key=lambda job: -there[job.job_id])
        order = [removed[-1], *earlier, *order[last + 1 :]]
    return removed


def _tier(job: RunningJob) -> float:
    return job.preemptable_by if job.preemptable_by is not None else math.inf
