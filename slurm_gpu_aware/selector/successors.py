"""Successors: the next jobs of the queue, whose gates open while every GPU is in use.

A round sees a freed GPU up to a second late. Where jobs run for some seconds only, that is a good
part of the machine. There the first jobs of the queue are opened ahead: Slurm starts each of them
on the next GPU that becomes free, in its own order, and chooses that GPU. No job passes another
one so:

- The queue must be long.
- Only jobs of one GPU are opened, and only without a gap from the front of the queue: none behind
  the first job that needs more, that a limit holds, or that waits by its own choice.
- None is opened that could start on a node that other users close to a job opened before it, nor on
  one with idle GPUs: there it, and all behind it, lack something else.
- As soon as such a job stands before one that was opened, that one is parked again.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_gpu_aware.admission.fitting import fits
from slurm_gpu_aware.admission.left import part_of
from slurm_gpu_aware.gate.gated_job import GatedJob, queue_order
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.node_users import left_open
from slurm_gpu_aware.model.request import LeftToSlurm, Request
from slurm_gpu_aware.placement.facts import BySlurm
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.left_to_slurm import LeftPolicy
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.preempt import can_preempt
from slurm_gpu_aware.selector.candidates import Candidate, Candidates
from slurm_gpu_aware.selector.passers import need_a_part
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob

_LEAST = 8
"""Jobs that must wait, and as many as run, before one is opened: a short queue needs no haste."""
_MOST = 100  # jobs that are open at a time
_STUCK_S = 3.0  # opened jobs that leave GPUs free for so long need something else
_LEEWAY = 4.0
_PAUSE_S = 60.0  # then no job is opened for so long
_QUIET_S = 5.0  # nor after owners changed jobs: that takes time, in which another job may come
_UNPLACED_S = 4.0  # Slurm has tried a released job by then
AHEAD = "jobs end so quickly that it takes the next GPU that becomes free"
"""Why Slurm chooses its GPU."""


@dataclass
class Successors:
    """The jobs that are opened ahead, and how quickly jobs end."""

    recall: Callable[[frozenset[str]], object]  # Parks jobs again that stand behind others now.
    short_s: float
    """Jobs that run for less on average are opened ahead: a start that is late by a second costs
    them more than Slurm's choice of the GPU. 0: none is."""
    timer: Callable[[], float] = time.monotonic
    opened: dict[str, Request] = field(default_factory=dict)
    enough: bool = False
    """As many are open as ended between any two rounds of the last ``short_s``."""
    _running: frozenset[int] = frozenset()
    """Numbers of the records that held GPUs when the last round read them."""
    _ended: deque[tuple[float, int]] = field(default_factory=deque)
    """(time of a round, jobs that had ended since the one before) of the last ``short_s``."""
    _unused_since: float = math.inf
    """When a round first saw free GPUs that opened jobs did not take."""
    _not_before: float = -math.inf
    _known: dict[int, int] = field(default_factory=dict)
    """Number of a pending record -> its priority, as the last round read it."""
    _left: dict[str, tuple[float, frozenset[str]]] = field(default_factory=dict)
    """Released job of which Slurm chooses the nodes -> (when a round first saw it, jobs that were
    parked then)."""
    _parked_het: dict[str, float] = field(default_factory=dict)
    """Heterogeneous job that was parked again for the first one before it -> when a round first
    saw it released that time."""
    _tiers: Mapping[str, int] = field(default_factory=dict)
    _nodes: tuple[str, ...] = ()
    """Those of the last round, by which `opened` knows the nodes of a job."""

    def observe(self, gated: Iterable[GatedJob]) -> None:
        """Count the jobs that ended; ``gated``: all jobs of ours, as a round read them."""
        running = frozenset(one.job.raw_id for one in gated if one.job.state in HOLDING)
        now = self.timer()
        self._ended.append((now, len(self._running - running)))
        while self._ended[0][0] < now - self.short_s:
            self._ended.popleft()
        self._running = running

    def look(self, jobs: Iterable[SlurmJob], *, changed: bool) -> None:
        """Recall what stands behind jobs that have come since the last round, before it plans.

        ``jobs``: all, as a round read them. ``changed``: owners have changed some of them.
        """
        if changed:
            self._not_before = max(self._not_before, self.timer() + _QUIET_S)
        pending = [job for job in jobs if job.state == "PENDING"]
        before, self._known = self._known, {job.raw_id: job.priority for job in pending}
        opened = [job for job in pending if job.id in self.opened]
        if not opened:
            return
        new = [
            _rank(job, self._tiers)
            for job in pending
            if job.id not in self.opened and job.priority > before.get(job.raw_id, -1)
        ]
        first = min(new, default=None)
        behind = (j.id for j in opened if changed or (first and first < _rank(j, self._tiers)))
        self.recall(frozenset(behind))

    @property
    def wanted(self) -> int:
        """How many jobs to open: as many as ended between two rounds; 0 where jobs run for long."""
        counts = [count for _, count in self._ended]
        # Those that are open stay so until jobs run for clearly longer.
        enough = len(self._running) / (_LEEWAY if self.opened else 1.0)
        return min(_MOST, max(counts)) if self.short_s and sum(counts) >= enough else 0

    def extended(
        self,
        plan: Plan,
        candidates: Candidates,
        view: View,
        settings: PlanSettings,
        *,
        may: bool,
        lasting: Set[str] = frozenset(),
    ) -> Plan:
        """The plan with the jobs that are opened ahead; recalls those whose turn is over.

        ``may``: False if something that Slurm does not know forbids it, as a power limit.
        ``lasting``: jobs with a gate that stays open until they start.
        """
        partitions = candidates.context.partitions
        self._tiers = {name: one.priority_tier for name, one in partitions.items()}
        pending = [one for one in view.released if one.id in self.opened]
        known, self.opened = self.opened, {one.id: self.opened[one.id] for one in pending}
        before, self._nodes = self._nodes, candidates.context.cluster.nodes
        may = may and before in ((), self._nodes)
        stuck = may and self._is_stuck(candidates, started=self.opened.keys() != known.keys())
        long = len(pending) + len(view.parked) >= max(_LEAST, len(self._running))
        wanted = self.wanted if may and not stuck and (long or pending) else 0
        if wanted and (candidates.passers or need_a_part(candidates.later_passers)):
            wanted = 0  # such a job would take the GPUs that these are to get
        first, kept = list[Candidate](), set[str]()
        if wanted:
            queue = [*pending, *view.parked, *view.elsewhere]
            first, kept = self._first(wanted, queue, plan, candidates)
        self.recall(
            frozenset(self.opened.keys() - kept) | self._in_the_way(plan, candidates, view, lasting)
        )
        candidates.to_plan |= {one.id: _left(one) for one in first}
        self.opened |= {one.id: one.request for one in first}
        self.enough = 0 < wanted <= len(kept) + len(first)
        waiting = tuple(one for one in plan.waiting if one.job_id not in self.opened)
        ahead = [_anywhere(one.request, settings) for one in first]
        return replace(plan, assignments=(*plan.assignments, *ahead), waiting=waiting)

    def _in_the_way(
        self, plan: Plan, candidates: Candidates, view: View, lasting: Set[str]
    ) -> set[str]:
        """Jobs that Slurm was to place and has not, with a job before them that came since.

        The round keeps GPUs for them: the one that came would wait for these, too. For those of
        ``lasting`` it keeps none, so any that waits before them counts. A heterogeneous one keeps
        all its nodes, and may never start: once the first counts that would fit without it.
        """
        now, parked = self.timer(), frozenset(job.id for job in view.parked)
        released = (j for j in view.released if j.id not in self.opened)
        left = {j.id: j for j in released if j.id in lasting or not j.job.req_nodes}
        self._left = {i: self._left.get(i, (now, parked)) for i in left}
        never = {one.job_id for one in plan.waiting if one.postponement or one.infeasible}
        come = {one.job_id for one in plan.waiting} - never
        known, cluster = candidates.to_plan, candidates.context.cluster
        there_still = {job.id for job in (*view.released, *view.parked)}
        self._parked_het = {i: at for i, at in self._parked_het.items() if i in there_still}
        found = set()
        for job_id, (since, there) in self._left.items():
            rank = _rank(left[job_id].job, self._tiers)
            if job_id not in lasting and now - since <= _UNPLACED_S:
                continue
            before = [j for j in view.parked if j.id in come and _rank(j.job, self._tiers) < rank]
            old = frozenset() if job_id in lasting else there
            came = any(j.id not in old for j in before)
            if not came and left[job_id].job.het_id is not None:
                # Only the first of them, as others wait for it; and once, or it would never start.
                first = next((known[j.id].request for j in before[:1] if j.id in known), None)
                again = self._parked_het.get(job_id, since) != since
                came = first is not None and not again and fits(first, _without(cluster, job_id))
                if came:
                    self._parked_het[job_id] = since
            if came:
                found.add(job_id)
        return found

    def _is_stuck(self, candidates: Candidates, *, started: bool) -> bool:
        """Whether opened jobs leave GPUs free, because they lack CPUs or something else.

        ``started``: some of them have started since the last round.
        """
        now, cluster = self.timer(), candidates.context.cluster
        unused = False
        if cluster.by_slurm is not None:
            idle = cluster.by_slurm.any(axis=1)
            unused = any((idle & _usable(one, cluster)).any() for one in self.opened.values())
        if started or not unused:
            self._unused_since = math.inf
        else:
            self._unused_since = min(self._unused_since, now)
        if now - self._unused_since > _STUCK_S:
            self._not_before = now + _PAUSE_S
        return now < self._not_before

    def _first(
        self,
        wanted: int,
        queue: Sequence[GatedJob],
        plan: Plan,
        candidates: Candidates,
    ) -> tuple[list[Candidate], set[str]]:
        """(Jobs to open, opened ones that stay so), from the front of the queue without a gap."""
        starts = {one.job_id for one in plan.assignments}
        cluster = candidates.context.cluster
        # Those that Slurm may give to opened jobs are free for a moment only.
        free = (cluster.free if self.opened else cluster.not_held).copy()
        for one in plan.assignments:
            for node, slots in one.gpus:
                free[node, list(slots)] = False
        off = free.any(axis=1)  # (N,) nodes on which none behind may start
        never = {one.job_id for one in plan.waiting if one.postponement or one.infeasible}
        first: list[Candidate] = []
        kept: set[str] = set()
        for gated in sorted(queue, key=lambda one: _rank(one.job, self._tiers)):
            if gated.id in self.opened:
                own = self.opened[gated.id]
                if (_usable(own, cluster) & off).any():
                    return first, kept
                kept.add(gated.id)
                off |= _closed(own, cluster)
                continue
            for candidate in candidates.of_record(gated.job):
                if candidate is not None and candidate.id in starts:
                    continue
                if (
                    candidate is None
                    or candidate.id in never
                    or not _is_simple(candidate, candidates)
                    or not (usable := _usable(candidate.request, cluster)).any()
                    or (usable & off).any()
                    or len(first) + len(kept) >= wanted
                ):
                    return first, kept
                first.append(candidate)
                off |= _closed(candidate.request, cluster)
            if len(kept) >= _MOST:
                break
        return first, kept


def _without(cluster: Cluster, job_id: str) -> Cluster:
    """The cluster as if a released job, of which Slurm chooses the GPUs, held none."""
    free = cluster.not_held.copy()
    for node, slots in (
        gpus for job in cluster.running if job.job_id == job_id for gpus in job.gpus
    ):
        free[node, list(slots)] = True
    return replace(cluster, free=free)


def _rank(job: SlurmJob, tiers: Mapping[str, int]) -> tuple[float, ...]:
    """Sort key of Slurm's order; a job of several partitions stands as in the highest of them."""
    tier = max((tiers.get(name, 0) for name in job.partitions), default=0)
    return -tier, *queue_order(job)


def _left(one: Candidate) -> Candidate:
    """The candidate as a job of which Slurm chooses the GPU."""
    left = one.request.left or LeftToSlurm(AHEAD, (part_of(one.gated.job),))
    return replace(one, request=replace(one.request, left=left))


def _anywhere(request: Request, settings: PlanSettings) -> Assignment:
    clock = None if request.left is not None else settings.clock_mhz(request)
    nowhere = request.job_id, (), (), LeftPolicy.name, 1.0, "node", 1.0
    return Assignment(*nowhere, exact=False, clock_mhz=clock, why=Facts((BySlurm(AHEAD),)))


def _is_simple(one: Candidate, candidates: Candidates) -> bool:
    """Whether the job starts on any GPU of its nodes that becomes free, and Slurm knows it all."""
    request, job, cluster = one.request, one.gated.job, candidates.context.cluster
    return (
        request.gpus == 1
        and request.min_nodes == 1
        and len(job.partitions) == 1
        and not (request.sizes or request.nodes.whole or request.nodes.alone)
        and one.told.ahead
        and not (request.left is not None and (request.left.fixed or request.left.again))
        and not candidates.is_untried(job)
        and not candidates.backoff.knows(one.id)
        and not can_preempt(request, cluster.running)
    )


def _allowed(request: Request, cluster: Cluster) -> BoolArray:
    """(N,) nodes that it may use, whoever uses them now."""
    allowed = allowed_nodes(request, cluster)
    return np.ones(len(cluster.nodes), dtype=np.bool_) if allowed is None else allowed


def _usable(request: Request, cluster: Cluster) -> BoolArray:
    """(N,) those that jobs of other users leave to it now."""
    return left_open(_allowed(request, cluster), cluster.users, request)


def _closed(request: Request, cluster: Cluster) -> BoolArray:
    """(N,) those that they close to it."""
    return _allowed(request, cluster) & ~_usable(request, cluster)
