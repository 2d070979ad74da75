"""Victims: which running jobs a job of a higher tier pushes out, and the GPUs that it takes.

Free GPUs first: this is asked only when nothing free fits. Slurm then preempts exactly the jobs
that hold the chosen GPUs, so the plan names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.cluster import Cluster, RunningJob
from slurm_gpu_aware.planning.timeline import Timeline
from slurm_gpu_aware.planning.victims import in_slurms_order, pushed_out
from slurm_gpu_aware.request import Request

__all__ = ["Preemption", "can_preempt", "plan_preemption"]

_MOST_NODES = 16  # cheapest single nodes that are tried before victims over several nodes
Place = Callable[[Request, Cluster], Assignment | None]


@dataclass(frozen=True, eq=False)
class Preemption:
    """A placement on GPUs that running jobs hold."""

    assignment: Assignment
    victims: tuple[RunningJob, ...]
    after: Cluster
    """The cluster with the victims gone; the assignment is not taken out."""

    def open_to(self, request: Request, running: Sequence[RunningJob]) -> tuple[RunningJob, ...]:
        """Everybody whom Slurm may preempt for it.

        Just the victims where it is told the GPUs. Where it picks them (plain nodes) it may take
        any job that the request may preempt on these nodes instead.
        """
        if self.assignment.exact:
            return self.victims
        nodes = set(self.assignment.nodes)
        there = [job for job in running if nodes & {node for node, _ in job.gpus}]
        return tuple(job for job in there if job in self.victims or _may_push_out(request, job))


def plan_preemption(
    request: Request, cluster: Cluster, running: Sequence[RunningJob], place: Place
) -> Preemption | None:
    """Choose the cheapest victims and the GPUs that become free by them, or None.

    Cheapest: fewest jobs, then the lowest tiers, then the newest (the latest end by its limit, as
    start times are not known here). For a job on one node this is exact over nodes for plain GPU
    counts; over several nodes victims are added in order of cost until the job fits and those that
    turn out needless are spared, most expensive first: no victim is left that could be spared.
    Three and more are such that Slurm preempts no others beside them (see `planning.victims`), or
    these are among the victims.

    ``running``: in the order of Slurm's records.
    """
    candidates = in_slurms_order([job for job in running if _may_push_out(request, job)])
    if not candidates:
        return None
    if 1 in request.node_counts(cluster.shape[1]):
        found = _on_one_node(request, cluster, candidates, place)
        if found is not None:
            return found
    return _over_nodes(request, cluster, candidates, place)


def can_preempt(request: Request) -> bool:
    """Say whether a request may preempt anybody at all."""
    return request.preemption_tier is not None or bool(request.preempts | request.preempts_lower)


def _may_push_out(request: Request, job: RunningJob) -> bool:
    if job.preempt_group is not None:
        lower = job.priority < request.preempting_priority
        return job.preempt_group in request.preempts or (
            lower and job.preempt_group in request.preempts_lower
        )
    tier = request.preemption_tier
    return tier is not None and job.preemptable_by is not None and job.preemptable_by < tier


def _cost(job: RunningJob) -> tuple[float, float, str]:
    """Cheapest first: lowest tier, then the latest end."""
    tier = job.preemptable_by if job.preemptable_by is not None else math.inf
    return (tier, -job.end_s, job.job_id)


def _without(cluster: Cluster, victims: Sequence[RunningJob]) -> Cluster:
    gone = [replace(job, end_s=0.0) for job in victims]
    after = Timeline(gone, 0.0).at(cluster, 0.0)
    if after.sockets is not None and cluster.sockets is not None:
        after.sockets.quiet[:] = cluster.sockets.quiet  # that is not later, it is now
    return after


def _on_one_node(
    request: Request, cluster: Cluster, candidates: Sequence[RunningJob], place: Place
) -> Preemption | None:
    held: dict[int, list[tuple[RunningJob, int]]] = {}
    for job in candidates:
        for node, slots in job.gpus:
            held.setdefault(node, []).append((job, len(slots)))
    free = cluster.free.sum(axis=1)
    options: list[tuple[int, list[tuple[float, float, str]], int, list[RunningJob]]] = []
    for node, holders in held.items():
        wanted = int(cluster.exists[node].sum()) if request.whole_node else request.gpus
        chosen: list[RunningJob] = []
        missing = wanted - int(free[node])
        # The largest holders first gives the fewest jobs; what it overshoots is spared below.
        for job, gpus in sorted(holders, key=lambda h: (-h[1], _cost(h[0]))):
            if missing <= 0 and chosen:
                break
            chosen.append(job)
            missing -= gpus
        if missing <= 0:
            missing = wanted - int(free[node])
            chosen = _cheaper(chosen, holders, missing)
            if len(chosen) < len(pushed_out(chosen, candidates, {node})):
                chosen = _first(holders, missing)
            options.append((len(chosen), sorted(map(_cost, chosen)), node, chosen))
    options.sort(key=lambda o: (o[0], o[1], o[2]))
    for _, _, node, chosen in options[:_MOST_NODES]:
        only = np.zeros(cluster.shape[0], dtype=np.bool_)
        only[node] = request.eligible is None or bool(request.eligible[node])
        narrowed = replace(request, eligible=only)
        after = _without(cluster, chosen)
        assignment = place(narrowed, after)
        if assignment is not None:
            return Preemption(assignment, tuple(chosen), after)
    return None


def _first(holders: list[tuple[RunningJob, int]], missing: int) -> list[RunningJob]:
    """The first in Slurm's order that free enough: it preempts just these."""
    freed = list(accumulate(count for _, count in holders))
    return [job for job, _ in holders[: 1 + next(i for i, n in enumerate(freed) if n >= missing)]]


def _cheaper(
    chosen: list[RunningJob], holders: list[tuple[RunningJob, int]], missing: int
) -> list[RunningJob]:
    """Swap victims for cheaper holders while the same number of jobs still frees enough."""
    gpus = {job.job_id: count for job, count in holders}
    result = sorted(chosen, key=_cost, reverse=True)
    for position, job in enumerate(result):
        freed = sum(gpus[j.job_id] for j in result)
        taken = {j.job_id for j in result}
        for other, count in sorted(holders, key=lambda h: _cost(h[0])):
            cheaper = other.job_id not in taken and _cost(other) < _cost(job)
            if cheaper and freed - gpus[job.job_id] + count >= missing:
                result[position] = other
                break
    return result


def _over_nodes(
    request: Request, cluster: Cluster, candidates: Sequence[RunningJob], place: Place
) -> Preemption | None:
    victims = sorted(candidates, key=_cost)
    low, high = 0, len(victims)
    if place(request, _without(cluster, victims)) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if place(request, _without(cluster, victims[:middle])) is None:
            low = middle
        else:
            high = middle
    needed = list(victims[:high])
    assignment = place(request, _without(cluster, needed))
    if assignment is not None:  # at once to those whose GPUs or room the chosen set touches
        touched = [job for job in needed if {n for n, _ in job.gpus} & set(assignment.nodes)]
        if place(request, _without(cluster, touched)) is not None:
            needed = touched
    for job in reversed(list(needed)):
        spared = [other for other in needed if other is not job]
        if place(request, _without(cluster, spared)) is not None:
            needed = spared
    assignment = place(request, _without(cluster, needed))
    if assignment is None:
        return None
    gone = pushed_out(needed, candidates, set(assignment.nodes))
    needed += [job for job in gone if job not in needed]
    return Preemption(assignment, tuple(needed), _without(cluster, needed))
