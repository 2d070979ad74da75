"""Victims: the jobs that Slurm preempts for a job with given nodes and GPUs.

Slurm (24.11.5, ``_run_now`` of select/cons_tres) takes running jobs away in its own order until the
job fits, moves the last of them to the front and tries again (twice, unless ``reorder_count`` says
otherwise), and preempts all that it took away the last time on the job's nodes, whether they hold
GPUs or not. On one node by default, jobs therefore go alone if all but two of them are the first in
its order; others take along the jobs before them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, PreemptionOrder, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import node_demand

__all__ = ["Lack", "VictimQueue", "tier"]


@dataclass
class Lack:
    """What running jobs keep from a job on the nodes that were chosen for it."""

    slots: set[tuple[int, int]] = field(default_factory=set)
    """(node, slot) of its GPUs."""
    cpus: dict[int, int] = field(default_factory=dict)
    """Node -> CPUs that are lacking; 0 and less: there are enough."""
    memory_mb: dict[int, int] = field(default_factory=dict)
    """The same in MB."""
    jobs: set[str] = field(default_factory=set)
    """Jobs that have to go for another reason."""

    @classmethod
    def of(
        cls,
        request: Request,
        assignment: Assignment,
        cluster: Cluster,
        needed: Sequence[RunningJob],
    ) -> Lack:
        """``needed``: with them gone it fits. All of them go where the reason is not known."""
        lack = cls()
        for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
            cpus, memory = node_demand(request, len(assignment.nodes), len(slots))
            if request.whole_node:
                slots = tuple(np.flatnonzero(cluster.exists[node]).tolist())
                cpus = cpus if cluster.cpus is None else int(cluster.cpus[node])
            lack.slots |= {(node, slot) for slot in slots if not cluster.free[node, slot]}
            lack.cpus[node] = cpus - int(cluster.free_cpus[node])
            lack.memory_mb[node] = memory - int(cluster.free_memory_mb[node])
        by_slurm = not assignment.exact and not request.whole_node
        if by_slurm or request.bound or not lack:
            lack.jobs = {job.job_id for job in needed}
        return lack

    def __bool__(self) -> bool:
        amounts = (self.cpus, self.memory_mb)
        return bool(self.slots or self.jobs) or any(n > 0 for a in amounts for n in a.values())

    def copy(self) -> Lack:
        """The same with its own sets."""
        return replace(
            self,
            slots=set(self.slots),
            cpus=dict(self.cpus),
            memory_mb=dict(self.memory_mb),
            jobs=set(self.jobs),
        )

    def take_away(self, job: RunningJob) -> None:
        """What is lacked no longer when a job is gone."""
        for node, slots in job.gpus:
            self.slots.difference_update((node, slot) for slot in slots)
        for amounts, held in ((self.cpus, job.cpus), (self.memory_mb, job.memory_mb)):
            for node, amount in held.items():
                if node in amounts:
                    amounts[node] -= amount
        self.jobs.discard(job.job_id)


class VictimQueue:
    """All jobs that a request may preempt, in the order in which Slurm takes them away.

    Lowest tier first, then jobs on fewest nodes, then as Slurm lists them; with ``youngest_first``
    the newest first, and nothing else counts.
    """

    def __init__(self, jobs: Sequence[RunningJob], order: PreemptionOrder) -> None:
        """``jobs``: in the order of Slurm's records."""
        self.order = order
        if order.youngest_first:
            ordered = sorted(jobs, key=lambda job: -job.start_s)
        else:
            ordered = sorted(jobs, key=lambda job: (tier(job), job.node_count))
        self.suspends = bool(ordered) and ordered[0].keeps_gpus
        """Slurm then suspends for this request, and ends no job."""
        self.jobs = [job for job in ordered if not job.keeps_gpus]
        self._places: dict[int, list[int]] = {}
        for place, job in enumerate(self.jobs):
            for node in job.on_nodes:
                self._places.setdefault(node, []).append(place)

    def on(self, node: int) -> list[RunningJob]:
        """Those on a node, in this order."""
        return [self.jobs[place] for place in self._places.get(node, ())]

    @property
    def nodes(self) -> list[int]:
        """Nodes on which any of them runs."""
        return list(self._places)

    def preempted(self, nodes: Collection[int], lack: Lack) -> list[RunningJob] | None:
        """Jobs that Slurm preempts on ``nodes`` so that nothing is lacked; None: that cannot be."""
        places = [place for node in nodes for place in self._places.get(node, ())]
        found, shared = np.unique(np.array(places, dtype=np.int64), return_counts=True)
        queue = [(self.jobs[p], int(n)) for p, n in zip(found, shared, strict=True)]
        attempt = 0
        while True:
            left, count = lack.copy(), 0
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
    """What it costs to preempt a job: tiers first."""
    return job.preemptable_by if job.preemptable_by is not None else math.inf
