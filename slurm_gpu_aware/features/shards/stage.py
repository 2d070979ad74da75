"""Stage of a round: jobs that ask for shards of one GPU fill used GPUs first, best fit.

Before the round `split_queue` takes the jobs out of the queue that may share a GPU: with the jobs
that have shards of it now, or with a job before them. Those that no other job precedes are placed
at once. Each job that finds no GPU to share is planned in the round as a job of one whole GPU, so
that priorities, reservations and policies count as for any job. After the round `with_shards`
places the others. Each gets the used GPU with the fewest free shards that suffice, then the best
score of its class (STS, Algorithm 3, fills used GPUs first).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.features.shards.declared import SHARDS, OfGpu
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, Gpus, Shards
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.node_users import left_open
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import node_demand, room_beside
from slurm_gpu_aware.planning.backfill import takes_shards
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting, waits_behind
from slurm_gpu_aware.planning.postponing import awaited
from slurm_gpu_aware.planning.prefix import in_slurm_order
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.planning.timeline import occupy
from slurm_gpu_aware.time_text import counted

POLICY = "shards"  # Word for the policy of a job on a GPU that others use.


class SplitQueue(NamedTuple):
    """The queue of a round, and what is taken out of it."""

    placed: Sequence[Assignment]  # Jobs on used GPUs that no other job precedes.
    queue: Sequence[Request]
    sharing: Sequence[Request]  # Jobs for `with_shards`.
    cluster: Cluster  # The cluster without what ``placed`` takes.
    all: Sequence[Request]  # All jobs, in Slurm's order.


def split_queue(queue: Sequence[Request], cluster: Cluster) -> SplitQueue:
    """Take the jobs that may share a GPU out of a queue."""
    if not any(request.get(SHARDS) for request in queue):
        return SplitQueue((), queue, (), cluster, queue)
    queue = in_slurm_order(queue)
    room = _Room(cluster)
    placed: list[Assignment] = []
    for request in queue:
        gpu = room.best(request) if request.get(SHARDS) else None
        if gpu is None:
            break
        placed.append(room.assignment(request, gpu))
        room.take(request, gpu)
    cluster = room.cluster
    room = _Room(cluster)
    first: list[Request] = []
    sharing: list[Request] = []
    opened: dict[object, int] = {}  # shards that a job of this kind leaves of a GPU of its own
    for request in queue[len(placed) :]:
        kind = _kind(request)
        if not request.get(SHARDS):
            first.append(request)
        elif (gpu := room.best(request)) is not None:
            room.take(request, gpu)
            sharing.append(request)
        elif opened.get(kind, 0) >= request.get(SHARDS):
            opened[kind] -= request.get(SHARDS)
            sharing.append(request)
        else:
            first.append(request)
            opened[kind] = room.least_total(request) - request.get(SHARDS)
    return SplitQueue(placed, first, sharing, cluster, queue)


def _kind(request: Request) -> object:
    """By which jobs find a GPU at the same time: one never waits for another that needs more."""
    mask = None if request.nodes.eligible is None else request.nodes.eligible.tobytes()
    return mask, node_demand(request, 1, 1), request.time_limit_s


def with_shards(one: Round, split: SplitQueue) -> Plan:
    """The plan of a round with the jobs of its queue that share GPUs.

    As in backfill none of them delays a job before it that has a reservation: it must end before,
    or leave the reserved GPUs, CPUs and memory free. Without backfill it waits, too, except behind
    a job that waits by its own choice. Each job that finds too few shards, up to the number of
    reservations, keeps the GPU with the most free ones that none before it keeps: no job behind it
    gets a part of that GPU, and none whose shards Slurm chooses gets its node.
    """
    plan, cluster, settings = one.plan, one.cluster, one.settings
    if not any(request.get(SHARDS) for request in split.all):
        return plan
    room = _Room(cluster, settings.reservations)
    requests = {request.job_id: request for request in split.queue}
    starts = {a.job_id: room.start(requests[a.job_id], a) for a in plan.assignments}
    waiting = {wait.job_id: wait for wait in plan.waiting}
    there = {request.job_id for request in one.queue}
    sharing = {request.job_id for request in split.sharing} & there
    heads: list[_Head] = []
    for request in split.all:
        if request.job_id not in sharing:
            before = waiting.get(request.job_id)
            if before is not None and (before.kept or not heads):
                heads += _head_of(request, before, settings, cluster)
            if before is not None and not (before.infeasible or before.failed):
                room.keep(request)
            elif request.job_id in starts and takes_shards(request) and room.kept_for:
                beside = room.beside_kept(request, starts.pop(request.job_id))
                if beside is None:
                    why = waits_behind(room.kept_for[0])
                    waiting[request.job_id] = Waiting(request.job_id, why, turn="behind")
                else:
                    starts[request.job_id] = beside
            continue
        gpu = room.best(request)
        shards = counted(request.get(SHARDS) or 0, "shard")
        why = f"next: waits for {shards} of a GPU that others use"
        first = room.kept_for[0] if room.kept_for else None
        late = [head for head in heads if one.now + request.time_limit_s > head.start_s]
        if gpu is not None and late:
            gpu = room.best(request, late) if all(head.gpus for head in late) else None
            first = late[0].request.job_id
        if gpu is None:
            waiting[request.job_id] = (
                Waiting(request.job_id, why)
                if first is None
                else Waiting(request.job_id, waits_behind(first), turn="behind")
            )
            if not late:
                room.keep(request)
        else:
            starts[request.job_id] = room.assignment(request, gpu)
            room.take(request, gpu)
    assignments = (*split.placed, *starts.values())
    return replace(plan, assignments=assignments, waiting=tuple(waiting.values()))


class _Head(NamedTuple):
    """A waiting job, and what is reserved for it."""

    request: Request
    start_s: float
    gpus: Gpus  # Without any, all jobs behind it must end before.


def _head_of(
    request: Request, waiting: Waiting, settings: PlanSettings, cluster: Cluster
) -> list[_Head]:
    """The job, if it holds up others."""
    start_s, gpus = waiting.shadow_start_s, waiting.reserved
    if waiting.kept is not None:
        start_s, gpus = waiting.kept
    if (wait := waiting.postponement) is not None:
        start_s, gpus = wait.start_s, awaited(request, wait, cluster)
    elif not (settings.backfill or waiting.infeasible or waiting.failed):
        start_s, gpus = -math.inf, ()
    if request.sizes and gpus:
        request = request.resized(sum(len(slots) for _, slots in gpus))
    return [] if start_s is None else [_Head(request, start_s, gpus)]


class _Room:
    """Free shards, CPUs and memory while jobs are placed."""

    def __init__(self, cluster: Cluster, most: int = 0) -> None:
        """``most``: GPUs that are kept for jobs that find too few shards."""
        none = np.zeros(cluster.shape, dtype=np.int64)
        shards = cluster.shards or Shards(none, none)
        self._total, self._free = shards.total, shards.free.copy()
        self.cluster = replace(cluster.copy(), shards=Shards(self._total, self._free))
        """The cluster with what is left."""
        self._kept = np.zeros(cluster.shape, dtype=np.bool_)
        """The GPUs that are kept for jobs that find too few shards."""
        self.kept_for: list[str] = []
        """These jobs, in their order."""
        self._most = most

    def least_total(self, request: Request) -> int:
        """Shards of the smallest GPU that the job may get."""
        eligible = request.nodes.eligible
        total = self._total if eligible is None else self._total[eligible]
        enough = total[total >= request.get(SHARDS)]
        return int(enough.min()) if enough.size else 0

    def best(self, request: Request, heads: Sequence[_Head] = ()) -> Gpu | None:
        """The used GPU with the fewest free shards that suffice; None: there is none.

        ``heads``: what is reserved for each of them stays free.
        """
        cpus, memory_mb = node_demand(request, 1, 1)
        _, able = room_beside(request, self.cluster, cpus, memory_mb)
        if request.nodes.eligible is not None:
            able &= request.nodes.eligible
        able = left_open(able, self.cluster.users, request)
        enough = (self._free >= request.get(SHARDS)) & able[:, None]
        enough &= ~self._kept
        for head in heads:
            for node, kept in head.gpus:
                kept_cpus, kept_mb = node_demand(head.request, len(head.gpus), len(kept))
                left = self.cluster.free_cpus[node] - cpus >= kept_cpus
                left &= self.cluster.free_memory_mb[node] - memory_mb >= kept_mb
                own, its = request.nodes, head.request.nodes
                apart = (own.alone or its.alone) and request.user != head.request.user
                enough[node] &= left and not (apart or own.sharing.closes(its.sharing))
                enough[node, list(kept)] = False
        nodes, slots = np.nonzero(enough)
        if not len(nodes):
            return None
        scores = self.cluster.score(request.app_class)[nodes, slots]
        at = np.lexsort((slots, nodes, scores, self._free[nodes, slots]))[0]
        return int(nodes[at]), int(slots[at])

    def keep(self, request: Request) -> None:
        """Keep the GPU with the most free shards, of those that may once have enough, for a job."""
        if not request.get(SHARDS) or len(self.kept_for) >= self._most:
            return
        may = (self._total >= request.get(SHARDS)) & ~self._kept
        if request.nodes.eligible is not None:
            may &= request.nodes.eligible[:, None]
        if may.any():
            self.kept_for.append(request.job_id)
            self._kept.flat[int(np.where(may, self._free, -1).argmax())] = True

    def beside_kept(self, request: Request, one: Assignment) -> Assignment | None:
        """The start of a job whose shards Slurm chooses, off nodes of kept GPUs; None: not now."""
        assert request.left is not None  # noqa: S101 - the caller has checked
        off = set(np.flatnonzero(self._kept.any(axis=1)).tolist())
        if request.left.fixed or off.intersection(one.nodes):
            return None
        return replace(one, kept_off=tuple(sorted(off.union(one.kept_off))))

    def take(self, request: Request, gpu: Gpu) -> None:
        """Mark shards, CPUs and memory of a job as held."""
        self._free[gpu] -= request.get(SHARDS)
        self._hold(request, gpu[0], 1, 1)

    def start(self, request: Request, chosen: Assignment) -> Assignment:
        """Mark what the round gave a job; return its assignment, with shards if it has some."""
        if request.sizes:
            request = request.resized(chosen.size)
        for node, slots in chosen.gpus:
            self._hold(request, node, len(chosen.nodes), len(slots))
        if not (shards := request.get(SHARDS)):
            return chosen
        gpu = chosen.nodes[0], chosen.slots[0][0]
        total = int(self._total[gpu])
        self._free[gpu] = max(0, total - shards)
        return replace(chosen.explained(OfGpu(shards, total)), clock_mhz=None)

    def assignment(self, request: Request, gpu: Gpu) -> Assignment:
        """The assignment of a job to a used GPU."""
        (node, slot), score = gpu, float(self.cluster.score(request.app_class)[gpu])
        free, total = int(self._free[gpu]), int(self._total[gpu])
        return Assignment(
            job_id=request.job_id,
            nodes=(node,),
            slots=((slot,),),
            policy=POLICY,
            score=score,
            level=self.cluster.levels[0].name,
            slowdown=score,
            why=Facts((OfGpu(request.get(SHARDS), total, free),)),
        )

    def _hold(self, request: Request, node: int, nodes: int, gpus: int) -> None:
        self.cluster.take(node, (), *node_demand(request, nodes, gpus))
        occupy(self.cluster, request, ((node, ()),))


SPLIT: Facet[SplitQueue | None] = Facet("split queue", None)
"""The queue without jobs that share GPUs; None: no job does."""


class Sharing(Stage):
    """Jobs that share a GPU are placed beside the queue."""

    name = "shards"
    reads = (SHARDS,)

    def before(self, one: Round) -> Round:
        """The queue without them."""
        split = split_queue(one.queue, one.cluster)
        if split.queue is one.queue:
            return one
        aside = (*one.aside, *split.sharing)
        one = replace(one, queue=split.queue, cluster=split.cluster, aside=aside)
        return one.put(SPLIT, split)

    def after(self, one: Round) -> Round:
        """The plan with them."""
        split = one.get(SPLIT)
        return one if split is None else replace(one, plan=with_shards(one, split))
