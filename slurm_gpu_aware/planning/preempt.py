"""Preemption: the GPUs that a job takes, and the running jobs that Slurm preempts for them.

Slurm (24.11.5, ``_run_now`` of select/cons_tres) removes running jobs in its order until the job
fits, moves the last removed job to the front and tries again (by default twice, see
``reorder_count``). It preempts all jobs removed in the last attempt on the job's nodes, whether
they hold GPUs or not.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, PreemptionOrder, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import node_demand
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.timeline import Timeline

_MOST_NODES = 16  # cheapest nodes that are tried before victims over several nodes
Price = tuple[int, list[int]]  # Number of jobs, and their ranks by cost, ascending.


@dataclass
class Shortage:
    """Resources that running jobs hold and a job needs on its chosen nodes."""

    slots: set[tuple[int, int]] = field(default_factory=set)  # (node, slot) of held GPUs.
    amounts: dict[tuple[str, int], int] = field(default_factory=dict)
    """(``cpus`` or ``memory_mb``, node) -> missing amount; 0 or less: enough."""
    jobs: set[str] = field(default_factory=set)  # Jobs that must end for another reason.

    @classmethod
    def of(
        cls,
        request: Request,
        assignment: Assignment,
        cluster: Cluster,
        needed: Sequence[RunningJob],
    ) -> Self:
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


@dataclass(frozen=True, eq=False)
class Preemption:
    """A placement on GPUs that running jobs hold."""

    assignment: Assignment
    victims: tuple[RunningJob, ...]
    after: Cluster  # The cluster without the victims and without the assignment.

    def open_to(self, request: Request, running: Sequence[RunningJob]) -> tuple[RunningJob, ...]:
        """All jobs that Slurm may preempt for the assignment: the victims if it names GPUs."""
        if self.assignment.exact:
            return self.victims
        return tuple(
            job
            for job in running
            if not job.on_nodes.isdisjoint(self.assignment.nodes)
            and (job in self.victims or (_may_preempt(request, job) and not job.keeps_gpus))
        )


def plan_preemption(
    request: Request, cluster: Cluster, running: Sequence[RunningJob], dispatcher: Dispatcher
) -> Preemption | None:
    """Choose the cheapest victims and the GPUs for the request, or None.

    Cheapest: fewest jobs, then the lowest tiers, then the newest; if Slurm preempts the newest
    first, the tiers do not count. On one node this is exact for GPU counts. Over several nodes
    victims are added in order of cost until the job fits; then those not needed are removed, the
    most expensive first. ``running``: in the order of Slurm's records.
    """
    allowed = [job for job in running if _may_preempt(request, job)]
    queue = VictimQueue(allowed, cluster.preemption)
    if not queue.jobs or queue.suspends:
        return None
    found = None
    if 1 in request.node_counts(cluster.shape[1]):
        found = _on_one_node(request, cluster, queue, dispatcher)
    return found or _over_nodes(request, cluster, queue, dispatcher)


def can_preempt(request: Request, running: Iterable[RunningJob]) -> bool:
    """Say whether a request may preempt any of some running jobs."""
    return any(_may_preempt(request, job) for job in running)


def _may_preempt(request: Request, job: RunningJob) -> bool:
    may = request.preemption
    if (request.nodes.alone or job.alone) and request.user != job.user:
        return False  # Slurm looks on no node where it runs
    if (group := job.preempt_group) is not None:
        lower = job.priority < may.priority
        return group in may.groups or (lower and group in may.lower_groups)
    own, by = may.tier, job.preemptable_by
    return own is not None and by is not None and by < own


def _by_cost(queue: VictimQueue) -> list[RunningJob]:
    """The cheapest first: lowest tier, then the newest, then the latest end."""
    by_tier = not queue.order.youngest_first
    return sorted(
        queue.jobs,
        key=lambda job: (tier(job) if by_tier else 0.0, -job.start_s, -job.end_s, job.job_id),
    )


def _price(ranks: Iterable[int]) -> Price:
    ordered = sorted(ranks)
    return len(ordered), ordered


def _without(cluster: Cluster, victims: Sequence[RunningJob]) -> Cluster:
    after = Timeline(victims, 0.0).at(cluster, math.inf)
    if after.sockets is not None and cluster.sockets is not None:
        after.sockets.quiet[:] = cluster.sockets.quiet  # the time is still now
    return after


def _on_one_node(
    request: Request, cluster: Cluster, queue: VictimQueue, dispatcher: Dispatcher
) -> Preemption | None:
    """Try nodes by ascending least cost, each with the jobs that Slurm preempts there."""
    ranks = {job.job_id: rank for rank, job in enumerate(_by_cost(queue))}
    best: tuple[Price, Assignment, list[RunningJob]] | None = None
    for option in _options(request, cluster, queue, ranks)[:_MOST_NODES]:
        if best is not None and best[0] <= option.price:
            break
        narrowed = request.on_nodes(np.arange(cluster.shape[0]) == option.node)
        for chosen in option.sets(queue.order):
            assignment = dispatcher.could_place(narrowed, _without(cluster, chosen))
            if assignment is None:
                continue
            gone = _gone(request, assignment, cluster, queue, chosen)
            price = _price(ranks[job.job_id] for job in gone)
            if best is None or price < best[0]:
                best = (price, assignment, gone)
            if len(gone) <= len(chosen):
                break
    return None if best is None else Preemption(best[1], tuple(best[2]), _without(cluster, best[2]))


class _Holder(NamedTuple):
    """A job that holds GPUs of a node or, for a whole-node request, anything."""

    gpus: int
    rank: int
    job: RunningJob


class _Option(NamedTuple):
    """A node where holders can free enough GPUs."""

    node: int
    price: Price  # Price of ``cheapest``.
    cheapest: list[_Holder]
    holders: list[_Holder]  # In Slurm's order.
    missing: int

    def sets(self, order: PreemptionOrder) -> Iterator[list[RunningJob]]:
        """Sets that free enough: the cheapest one, then one without further victims."""
        yield [holder.job for holder in self.cheapest]
        alone = _alone(self.holders, self.missing, order.reorder_count + 1)
        if _price(holder.rank for holder in alone) != self.price:
            yield [holder.job for holder in alone]


def _options(
    request: Request, cluster: Cluster, queue: VictimQueue, ranks: Mapping[str, int]
) -> list[_Option]:
    free = cluster.free.sum(axis=1).tolist()
    there = cluster.exists.sum(axis=1).tolist()
    held = {job.job_id: {node: len(slots) for node, slots in job.gpus} for job in queue.jobs}
    options = []
    for node in queue.places:
        if request.nodes.eligible is not None and not request.nodes.eligible[node]:
            continue
        holders = [
            _Holder(gpus, ranks[job.job_id], job)
            for job in queue.on(node)
            if (gpus := held[job.job_id].get(node, 0)) or request.nodes.whole
        ]
        missing = (there[node] if request.nodes.whole else request.gpus) - free[node]
        if not holders or missing > sum(holder.gpus for holder in holders):
            continue
        cheapest = holders if request.nodes.whole else _cheapest(holders, missing)
        price = _price(holder.rank for holder in cheapest)
        options.append(_Option(node, price, cheapest, holders, missing))
    return sorted(options, key=lambda option: (option.price, option.node))


def _gone(
    request: Request,
    assignment: Assignment,
    cluster: Cluster,
    queue: VictimQueue,
    needed: Sequence[RunningJob],
) -> list[RunningJob]:
    """Jobs that Slurm preempts for an assignment that fits with ``needed`` gone."""
    gone = queue.preempted(assignment.nodes, Shortage.of(request, assignment, cluster, needed))
    return list(needed) if gone is None else gone


def _first(holders: Sequence[_Holder], missing: int) -> list[_Holder]:
    """The first holders that free enough GPUs, at least one; all if they free too few."""
    freed = list(accumulate(holder.gpus for holder in holders))
    return list(holders[: 1 + next((i for i, n in enumerate(freed) if n >= missing), len(freed))])


def _alone(holders: Sequence[_Holder], missing: int, others: int) -> list[_Holder]:
    """The fewest that Slurm takes alone: the first in its order and ``others`` more."""
    candidates = []
    for first in range(len(holders) + 1):
        rest = sorted(holders[first:], key=lambda h: (-h.gpus, h.rank))[:others]
        short = missing - sum(holder.gpus for holder in holders[:first])
        chosen = [*holders[:first], *(_first(rest, short) if short > 0 else ())]
        if sum(holder.gpus for holder in chosen) >= missing and chosen:
            candidates.append(chosen)
    return min(candidates, key=lambda chosen: _price(holder.rank for holder in chosen))


def _cheapest(holders: Sequence[_Holder], missing: int) -> list[_Holder]:
    """The fewest holders that free enough, exchanged for cheaper ones while enough is freed."""
    by_size = sorted(holders, key=lambda holder: (-holder.gpus, holder.rank))
    result = sorted(_first(by_size, missing), key=lambda holder: holder.rank, reverse=True)
    by_rank = sorted(holders, key=lambda holder: holder.rank)
    taken = {holder.rank for holder in result}
    spare = sum(holder.gpus for holder in result) - missing
    for position, old in enumerate(result):
        for new in by_rank:
            if new.rank >= old.rank:
                break
            if new.rank not in taken and old.gpus - new.gpus <= spare:
                spare -= old.gpus - new.gpus
                taken = taken - {old.rank} | {new.rank}
                result[position] = new
                break
    return result


def _over_nodes(
    request: Request, cluster: Cluster, queue: VictimQueue, dispatcher: Dispatcher
) -> Preemption | None:
    victims = _by_cost(queue)

    def placed(gone: Sequence[RunningJob]) -> Assignment | None:
        return dispatcher.could_place(request, _without(cluster, gone))

    if placed(victims) is None:
        return None
    low, high = 0, 1
    while high < len(victims) and placed(victims[:high]) is None:
        low, high = high, 2 * high
    high = min(high, len(victims))
    enough = bisect_left(
        range(high), True, lo=low + 1, key=lambda count: placed(victims[:count]) is not None
    )
    needed = victims[:enough]
    if (assignment := placed(needed)) is not None:
        # first keep only jobs on the chosen nodes, if that is enough
        touched = [job for job in needed if not job.on_nodes.isdisjoint(assignment.nodes)]
        if placed(touched) is not None:
            needed = touched
    for job in reversed(list(needed)):
        spared = [other for other in needed if other is not job]
        if placed(spared) is not None:
            needed = spared
    assignment = placed(needed)
    if assignment is None:
        return None
    gone = _gone(request, assignment, cluster, queue, needed)
    return Preemption(assignment, tuple(gone), _without(cluster, gone))
