"""Jobs that ask for shards of one GPU: used GPUs are filled first, best fit. Pure functions.

Before the round `apart` takes the jobs out of the queue that may share a GPU: with the jobs that
have shards of it now, or with a job before them. Each other one is planned in the round as a job of
one whole GPU, so that priorities, reservations and policies count as for any job. After the round
`with_shards` gives the jobs that were taken out the used GPU with the fewest free shards that
suffice, then the best score of their class (STS, Algorithm 3, fills used GPUs first).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, Shards
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import node_demand
from slurm_gpu_aware.planning.plan import Plan, Waiting

POLICY = "shards"
"""Word for the policy of a job on a GPU that others use."""


def apart(
    queue: Sequence[Request], cluster: Cluster
) -> tuple[Sequence[Request], Sequence[Request]]:
    """(Queue of the round, jobs that may share a GPU), both in the order of ``queue``."""
    if not any(request.shards for request in queue):
        return queue, ()
    room = _Room(cluster)
    first: list[Request] = []
    sharing: list[Request] = []
    opened: list[tuple[Request, int]] = []  # jobs with a GPU of their own, and what that leaves
    for request in queue:
        if not request.shards:
            first.append(request)
        elif (gpu := room.best(request)) is not None:
            room.take(request, gpu)
            sharing.append(request)
        elif (at := _joined(request, opened)) is not None:
            opened[at] = opened[at][0], opened[at][1] - request.shards
            sharing.append(request)
        else:
            first.append(request)
            opened.append((request, room.least_total(request) - request.shards))
    return first, sharing


def _joined(request: Request, opened: Sequence[tuple[Request, int]]) -> int | None:
    """Position of a job before it whose GPU it can share; None: there is none.

    It starts nowhere as long as that job does not, so it must not ask for less than that one.
    """
    for at, (first, left) in enumerate(opened):
        if (
            left >= request.shards
            and first.required == request.required
            and np.array_equal(_mask(first), _mask(request))
            and request.time_limit_s >= first.time_limit_s
            and all(
                a >= b
                for a, b in zip(node_demand(request, 1, 1), node_demand(first, 1, 1), strict=True)
            )
        ):
            return at
    return None


def _mask(request: Request) -> BoolArray:
    return np.ones(0, dtype=np.bool_) if request.eligible is None else request.eligible


def with_shards(
    plan: Plan,
    queue: Sequence[Request],
    sharing: Sequence[Request],
    cluster: Cluster,
    now: float,
) -> Plan:
    """The plan of a round with the jobs that share GPUs.

    As in EASY backfill none of them delays a job before it: while one waits, it must end before the
    reservation of that job.

    Parameters
    ----------
    queue : all requests in Slurm's order.
    sharing : those of `apart`.
    cluster : the cluster of the round.
    """
    if not any(request.shards for request in queue):
        return plan
    room = _Room(cluster)
    requests = {request.job_id: request for request in queue}
    opened = []
    for one in plan.assignments:
        request = requests.get(one.job_id)
        if request is not None:
            one = room.start(request, one)
        opened.append(one)
    waits = {one.job_id: one for one in plan.waiting}
    apart_ids = {request.job_id for request in sharing}
    placed: list[Assignment] = []
    waiting: list[Waiting] = []
    latest_s, head = math.inf, ""
    for request in queue:
        if request.job_id in waits:
            if head == "" and not (
                waits[request.job_id].infeasible or waits[request.job_id].failed
            ):
                latest_s, head = _start_of(waits[request.job_id]), request.job_id
        elif request.job_id in apart_ids:
            gpu = room.best(request)
            if gpu is not None and now + request.time_limit_s <= latest_s:
                placed.append(room.assignment(request, gpu))
                room.take(request, gpu)
            elif gpu is not None:
                waiting.append(Waiting(request.job_id, f"waits for its turn behind job {head}"))
            else:
                why = f"next: waits for {request.shards} shards of a GPU that others use"
                waiting.append(Waiting(request.job_id, why))
    return replace(
        plan,
        assignments=(*opened, *placed),
        waiting=(*plan.waiting, *waiting),
    )


def _start_of(waiting: Waiting) -> float:
    if waiting.postponement is not None:
        return waiting.postponement.start_s
    return -math.inf if waiting.shadow_start_s is None else waiting.shadow_start_s


class _Room:
    """Free shards, CPUs and memory while jobs are placed."""

    def __init__(self, cluster: Cluster) -> None:
        none = np.zeros(cluster.shape, dtype=np.int64)
        shards = cluster.shards if cluster.shards is not None else Shards(none, none)
        self._cluster, self._total, self._free = cluster, shards.total, shards.free.copy()
        self._cpus, self._memory_mb = cluster.free_cpus.copy(), cluster.free_memory_mb.copy()

    def least_total(self, request: Request) -> int:
        """Shards of the smallest GPU that the job may get."""
        total = self._total if request.eligible is None else self._total[request.eligible]
        enough = total[total >= request.shards]
        return int(enough.min()) if enough.size else 0

    def best(self, request: Request) -> Gpu | None:
        """The used GPU with the fewest free shards that suffice; None: there is none."""
        cpus, memory_mb = node_demand(request, 1, 1)
        able = (self._cpus >= cpus) & (self._memory_mb >= memory_mb)
        if request.eligible is not None:
            able &= request.eligible
        if request.required:
            able &= np.isin(np.arange(len(able)), request.required)
        nodes, slots = np.nonzero((self._free >= request.shards) & able[:, None])
        if not len(nodes):
            return None
        scores = self._cluster.score(request.app_class)[nodes, slots]
        at = np.lexsort((slots, nodes, scores, self._free[nodes, slots]))[0]
        return int(nodes[at]), int(slots[at])

    def take(self, request: Request, gpu: Gpu) -> None:
        """Mark shards, CPUs and memory of a job as held."""
        self._free[gpu] -= request.shards
        self._hold(request, gpu[0], 1, 1)

    def start(self, request: Request, chosen: Assignment) -> Assignment:
        """Mark what the round gave a job; return its assignment, with shards if it has some."""
        if request.sizes:
            request = request.resized(chosen.size)
        for node, slots in chosen.gpus:
            self._hold(request, node, len(chosen.nodes), len(slots))
        if not request.shards:
            return chosen
        gpu = chosen.nodes[0], chosen.slots[0][0]
        total = int(self._total[gpu])
        self._free[gpu] = max(0, total - request.shards)
        words = f"the first with shards of this GPU: {request.shards} of {total}"
        why = {**chosen.why, "summary": f"{chosen.why.get('summary', '')}; {words}"}
        return replace(chosen, clock_mhz=None, why=why)

    def assignment(self, request: Request, gpu: Gpu) -> Assignment:
        """The assignment of a job to a used GPU."""
        (node, slot), score = gpu, float(self._cluster.score(request.app_class)[gpu])
        free, total = int(self._free[gpu]), int(self._total[gpu])
        words = (
            f"{request.shards} shards of a GPU that other jobs use: {free} of {total} were free,"
            " the fewest that suffice"
        )
        return Assignment(
            job_id=request.job_id,
            nodes=(node,),
            slots=((slot,),),
            policy=POLICY,
            score=score,
            level=self._cluster.levels[0].name,
            slowdown=score,
            why={"class": request.app_class, "summary": words},
        )

    def _hold(self, request: Request, node: int, nodes: int, gpus: int) -> None:
        cpus, memory_mb = node_demand(request, nodes, gpus)
        self._cpus[node] -= cpus
        self._memory_mb[node] -= memory_mb
