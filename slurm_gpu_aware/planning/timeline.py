"""What holds GPUs until when, and the cluster as it will be at a later time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.cluster import Cluster, RunningJob
from slurm_gpu_aware.placement.feasible import node_demand
from slurm_gpu_aware.request import Request

__all__ = ["Timeline", "as_running", "take"]


def take(cluster: Cluster, request: Request, assignment: Assignment) -> None:
    """Mark an assignment's GPUs, CPUs and memory as held, in place.

    Raises ValueError if a GPU is not free.
    """
    count = len(assignment.nodes)
    for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
        cpus, memory_mb = node_demand(request, count, len(slots))
        cluster.take(node, slots, cpus, memory_mb)


def as_running(request: Request, assignment: Assignment, now: float) -> RunningJob:
    """Return an assignment made now as the running job that it becomes."""
    count = len(assignment.nodes)
    gpus = tuple(zip(assignment.nodes, assignment.slots, strict=True))
    shares = {node: node_demand(request, count, len(slots)) for node, slots in gpus}
    return RunningJob(
        job_id=request.job_id,
        gpus=gpus,
        end_s=now + request.time_limit_s,
        cpus={node: cpus for node, (cpus, _) in shares.items()},
        memory_mb={node: memory for node, (_, memory) in shares.items()},
        app_class=request.app_class,
        application=request.options.get("application", request.application),
    )


class Timeline:
    """Ends of jobs as flat arrays, so that the cluster at any time is a few vector operations.

    Ends before ``now`` (jobs over their limit, about to go) count as ``now``.
    """

    def __init__(self, jobs: Sequence[RunningJob], now: float) -> None:
        gpus = [
            (node, slot, job.end_s) for job in jobs for node, slots in job.gpus for slot in slots
        ]
        shares = [
            (node, job.cpus.get(node, 0), job.memory_mb.get(node, 0), job.end_s)
            for job in jobs
            for node in {*job.cpus, *job.memory_mb}
        ]
        self._node = np.array([g[0] for g in gpus], dtype=np.int64)
        self._slot = np.array([g[1] for g in gpus], dtype=np.int64)
        self._end = np.maximum(np.array([g[2] for g in gpus], dtype=np.float64), now)
        self._share_node = np.array([s[0] for s in shares], dtype=np.int64)
        self._cpus = np.array([s[1] for s in shares], dtype=np.int64)
        self._memory = np.array([s[2] for s in shares], dtype=np.int64)
        self._share_end = np.maximum(np.array([s[3] for s in shares], dtype=np.float64), now)
        ends = {max(job.end_s, now) for job in jobs}
        self.ends: list[float] = sorted(ends)
        """Distinct ends, ascending; inf last if a job has no limit."""

    def at(self, cluster: Cluster, time_s: float) -> Cluster:
        """Return a copy of the cluster with everything given back that ends by ``time_s``."""
        later = cluster.copy()
        over = self._end <= time_s
        node, slot = self._node[over], self._slot[over]
        later.free[node, slot] = later.exists[node, slot]
        over = self._share_end <= time_s
        np.add.at(later.free_cpus, self._share_node[over], self._cpus[over])
        np.add.at(later.free_memory_mb, self._share_node[over], self._memory[over])
        return later
