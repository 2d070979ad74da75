"""Victims: the jobs that Slurm preempts for a job with given nodes and GPUs.

Slurm (24.11.5, ``_run_now`` of select/cons_tres) removes running jobs in its order until the job
fits, moves the last removed job to the front and tries again (by default twice, see
``reorder_count``). It preempts all jobs removed in the last attempt on the job's nodes, whether
they hold GPUs or not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, PreemptionOrder, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import node_demand


@dataclass
class Shortage:
    """Resources that running jobs hold and a job needs on its chosen nodes."""

    slots: set[tuple[int, int]] = field(default_factory=set)
    """(node, slot) of held GPUs."""
    amounts: dict[tuple[str, int], int] = field(default_factory=dict)
    """(``cpus`` or ``memory_mb``, node) -> missing amount; 0 or less: enough."""
    jobs: set[str] = field(default_factory=set)
    """Jobs that must end for another reason."""

    @classmethod
    def of(
        cls,
        request: Request,
        assignment: Assignment,
        cluster: Cluster,
        needed: Sequence[RunningJob],
    ) -> Shortage:
        """``needed``: jobs without which the job fits; all must end if the reason is not known."""
        shortage = cls()
        for node, slots in assignment.gpus:
            cpus, memory = node_demand(request, len(assignment.nodes), len(slots))
            if request.nodes.whole:
                slots = tuple(np.flatnonzero(cluster.exists[node]).tolist())
                cpus = cpus if cluster.cpus is None else int(cluster.cpus[node])
            if request.memory.whole and cluster.memory_mb is not None:
                memory = int(cluster.memory_mb[node])
            shortage.slots |= {(node, slot) for slot in slots if not cluster.free[node, slot]}
            shortage.amounts["cpus", node] = cpus - int(cluster.free_cpus[node])
            shortage.amounts["memory_mb", node] = memory - int(cluster.free_memory_mb[node])
        by_slurm = not assignment.exact and not request.nodes.whole
        if by_slurm or request.sockets.bound or not shortage:
            shortage.jobs = {job.job_id for job in needed}
        return shortage

    def __bool__(self) -> bool:
        return bool(self.slots or self.jobs) or any(n > 0 for n in self.amounts.values())

    def take_away(self, job: RunningJob) -> None:
        """Remove the resources of a job from the shortage, in place."""
        for node, slots in job.gpus:
            self.slots.difference_update((node, slot) for slot in slots)
        for kind, held in (("cpus", job.cpus), ("memory_mb", job.memory_mb)):
            for node, amount in held.items():
                if (kind, node) in self.amounts:
                    self.amounts[kind, node] -= amount
        self.jobs.discard(job.job_id)


class VictimQueue:
    """All jobs that a request may preempt, in Slurm's order of removal.

    Lowest tier, fewest nodes, order of ``jobs``; with ``youngest_first`` only the newest first.
    """

    def __init__(self, jobs: Sequence[RunningJob], order: PreemptionOrder) -> None:
        self.order = order
        if order.youngest_first:
            ordered = sorted(jobs, key=lambda job: -job.start_s)
        else:
            ordered = sorted(jobs, key=lambda job: (tier(job), job.node_count))
        self.suspends = bool(ordered) and ordered[0].keeps_gpus
        """Slurm suspends jobs and ends none."""
        self.jobs = [job for job in ordered if not job.keeps_gpus]
        self.places: dict[int, list[int]] = {}
        """Node -> positions in ``jobs`` of the jobs on it."""
        for place, job in enumerate(self.jobs):
            for node in job.on_nodes:
                self.places.setdefault(node, []).append(place)

    def on(self, node: int) -> list[RunningJob]:
        """Jobs on a node, in this order."""
        return [self.jobs[place] for place in self.places.get(node, ())]

    def preempted(self, nodes: Collection[int], shortage: Shortage) -> list[RunningJob] | None:
        """Jobs that Slurm preempts on ``nodes`` to end the shortage; None: that is impossible."""
        places = [place for node in nodes for place in self.places.get(node, ())]
        distinct, shared = np.unique(np.array(places, dtype=np.int64), return_counts=True)
        queue = [(self.jobs[p], int(n)) for p, n in zip(distinct, shared, strict=True)]
        attempt = 0
        while True:
            left = Shortage({*shortage.slots}, {**shortage.amounts}, {*shortage.jobs})
            count = 0
            while left and count < len(queue):
                left.take_away(queue[count][0])
                count += 1
            if left:
                return None
            tried_enough = attempt > self.order.reorder_count or len(self.jobs) <= attempt + 1
            if tried_enough or not count:
                return [job for job, _ in queue[:count]]
            last, earlier = queue[count - 1], queue[: count - 1]
            if not self.order.strict:
                earlier.sort(key=lambda entry: -entry[1])
            queue = [last, *earlier, *queue[count:]]
            attempt += 1


def tier(job: RunningJob) -> float:
    """Preemption tier of a job, inf without one."""
    return job.preemptable_by if job.preemptable_by is not None else math.inf
