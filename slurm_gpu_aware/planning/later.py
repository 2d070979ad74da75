"""Waiting that pays: a set that frees up later and ends a job sooner than the best set now.

Running jobs are given back in the order of their expected ends. A job ends at the time of its start
plus its expected run time x slowdown. The job waits for a later set if that saves it more run time
than the wait, weighted, takes, but never longer than a share of its expected run time after it was
first postponed, nor longer after its submission than the longest wait that the site sets
(`WaitRule`).

The ends are expectations: nothing here delays another job, and a job whose later set does not come
true takes the best set of that time.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate, islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment, RunningJobs
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.level_views import unpack
from slurm_gpu_aware.placement.policy import Policy, WaitRule
from slurm_gpu_aware.placement.shapes import LeastSlowdown

_MOST_ENDS = 40
_MOST_TRIALS = 4  # placements at later times for one decision
_LEAST_GAIN_S = 5.0  # Slurm takes as long from the end of a job to the start of the next
_LEAST_REST = 0.05  # of its expected run time: what an overdue job is expected to run on
_by_time, _until_s = attrgetter("time_s"), attrgetter("until_s")


@dataclass(frozen=True, eq=False)
class Later:
    """A set that frees up later, and the best set now; times on the clock of the round."""

    start_s: float  # Expected start on the later set.
    assignment: Assignment
    cluster: Cluster  # The cluster at ``start_s``, by the expected ends.
    end_s: float  # Expected end of the job on the later set.
    now: Assignment  # The set that the job does not take.
    now_end_s: float  # Expected end of the job there.

    @property
    def sooner_s(self) -> float:
        """Time by which the job ends sooner."""
        return self.now_end_s - self.end_s


def expected_ends(running: Sequence[RunningJob], now: float) -> FloatArray:
    """(jobs,) expected ends, later than ``now`` and at most at the limits; inf: not known.

    A job that has outrun its expectation is expected to run on as long as it is overdue, at least
    5% of its expected run time. A job over its limit has no expected end.
    """
    limit = np.array([*map(attrgetter("end_s"), running)], dtype=np.float64)
    given = np.array([*map(attrgetter("expected_end_s"), running)], dtype=np.float64)
    end = np.fmin(given, limit)  # of None, which is NaN here, and the limit the limit counts
    overdue = np.flatnonzero(end <= now)
    start = np.array([running[at].start_s for at in overdue.tolist()], dtype=np.float64)
    past = end[overdue]
    rest = np.maximum(now - past, _LEAST_REST * (past - start))
    end[overdue] = np.minimum(now + rest, limit[overdue])
    end[end <= now] = math.inf
    return end


class _End(NamedTuple):
    time_s: float
    job: RunningJob


class ExpectedEnds:
    """The expected ends of the running jobs, with those that a round starts or preempts."""

    def __init__(self, running: Sequence[RunningJob], now: float) -> None:
        self._now = now
        self._before = RunningJobs.of(running)
        self._started: list[_End] = []
        self._gone: set[str] = set()

    def copy(self) -> ExpectedEnds:
        """The same ends, for a trial of placements."""
        same = ExpectedEnds(self._before, self._now)
        same._started, same._gone = [*self._started], {*self._gone}
        return same

    def start(self, job: RunningJob) -> None:
        """Add a job that starts now."""
        known = job.until_s > self._now
        end = job.until_s if known else expected_ends([job], self._now).item()
        if end < math.inf:
            insort(self._started, _End(end, job), key=_by_time)

    def preempt(self, job_ids: Iterable[str]) -> None:
        """Leave out jobs that are preempted: what they held has a new holder."""
        self._gone.update(job_ids)

    def beside_gpus(self, nodes: Collection[int], latest_s: float) -> list[RunningJob]:
        """Jobs that end by a time and hold CPUs or memory of these nodes."""
        started = (end.job for end in self._started if end.job.beside_gpus)
        there = [
            job
            for job in (*self._before.beside_gpus, *started)
            if not job.on_nodes.isdisjoint(nodes) and job.job_id not in self._gone
        ]
        ends = expected_ends(there, self._now).tolist()
        return [job for job, end_s in zip(there, ends, strict=True) if end_s <= latest_s]

    def until(self, latest_s: float) -> Iterator[_End]:
        """Ends up to a finite time, ascending; of equal ones those of overdue jobs come first."""
        jobs = self._before.by_end
        late = bisect_right(jobs, self._now, key=_until_s)
        found: Iterable[_End] = (_End(job.until_s, job) for job in islice(jobs, late, None))
        if late or self._started:
            ends = expected_ends(jobs[:late], self._now).tolist()
            overdue = sorted(map(_End, ends, jobs[:late]), key=_by_time)
            found = merge(overdue, found, self._started, key=_by_time)
        for end in found:
            if end.time_s > latest_s:
                return
            if end.job.job_id not in self._gone:
                yield end


def better_later(
    request: Request,
    here: Assignment,
    cluster: Cluster,
    ends: ExpectedEnds,
    now: float,
    policy: Policy,
    reserved: Collection[Gpu] = (),
) -> Later | None:
    """Return the set that is best worth the wait; None: start now.

    That is the set with the least weight x wait + run time, if that is below the run time of a
    start now by the margin, and by some seconds.

    Parameters
    ----------
    here : the best set now, on ``cluster``.
    policy : the request's policy; its `wait_rule` says how long a job may wait, and for what gain.
    reserved : GPUs that other jobs get when they become free.
    """
    rule, run_s = policy.wait_rule(), request.expected_s
    if rule is None or not 0.0 < run_s < math.inf:
        return None
    goal = _goal_s(run_s, here, rule)
    least = LeastSlowdown.of(request, cluster)
    latest = min(rule.until_s(request, now), worth_until_s(request, here, least, now, rule))
    if latest <= now:
        return None
    steps = _Steps.of(request, cluster, ends.until(latest), least, reserved)
    if steps is None:
        return None
    search = _Search(request, cluster, policy, reserved, steps, now, rule.weight, goal)
    search.on_changed_nodes()
    search.over_several_nodes(least.across)
    if search.best is None:
        return None
    start_s, found, later = search.best
    end_s, here_end_s = start_s + run_s * found.slowdown, now + run_s * here.slowdown
    return Later(start_s, found, later, end_s, here, here_end_s)


def worth_until_s(
    request: Request, here: Assignment, least: LeastSlowdown, now: float, rule: WaitRule
) -> float:
    """Latest start at which the fastest GPUs would be worth the wait: a bound."""
    run_s = request.expected_s
    return now + (_goal_s(run_s, here, rule) - run_s * least.anywhere) / rule.weight


def _goal_s(run_s: float, here: Assignment, rule: WaitRule) -> float:
    """Time that wait and run together must stay below for the wait to pay."""
    return run_s * here.slowdown - max(run_s * rule.margin, _LEAST_GAIN_S)


@dataclass(frozen=True, eq=False)
class _Steps:
    """The ends that change nodes of a request, in order, and what these nodes can give after each.

    A row is a node of one of the ends.
    """

    ends: list[_End]
    rows: list[int]  # Number of rows up to and with each end.
    nodes: IntArray  # (R,) node of each row.
    free: BoolArray
    """(R, W) GPUs that are free there after the end, without those reserved for other jobs."""
    bound: list[float]
    """Least slowdown of a one-node set on the nodes that have changed up to each end."""

    @classmethod
    def of(
        cls,
        request: Request,
        cluster: Cluster,
        ends: Iterable[_End],
        least: LeastSlowdown,
        reserved: Collection[Gpu],
    ) -> _Steps | None:
        """Take the first ends that change allowed nodes; None: there is none."""
        allowed = allowed_nodes(request, cluster)
        steps: list[_End] = []
        parts: list[tuple[IntArray, IntArray]] = []
        for end in ends:
            nodes, masks = end.job.rows
            if allowed is not None:
                nodes, masks = nodes[allowed[nodes]], masks[allowed[nodes]]
            if len(nodes):
                steps.append(end)
                parts.append((nodes, masks))
                if len(steps) == _MOST_ENDS:
                    break
        if not steps:
            return None
        at, given = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = at.argsort(kind="stable")
        for row in (np.diff(at[order]) == 0).nonzero()[0].tolist():
            given[order[row + 1]] |= given[order[row]]  # a row has what came back before it
        free = cluster.exists[at] & (cluster.free[at] | unpack(given, cluster.shape[1]))
        there = set(at.tolist()) if reserved else ()
        for node, slot in reserved:
            if node in there:
                free[at == node, slot] = False
        rows = [*accumulate(len(nodes) for nodes, _ in parts)]
        bound = np.minimum.accumulate(least.on_nodes(at, free))
        return cls(steps, rows, at, free, [bound.item(row - 1) for row in rows])

    def after(self, index: int, cluster: Cluster, reserved: Collection[Gpu]) -> Cluster:
        """The cluster after an end, without reserved GPUs."""
        later = cluster.copy()
        rows = self.rows[index]
        later.free[self.nodes[:rows]] = self.free[:rows]  # of equal nodes the last row counts
        for _, job in self.ends[: index + 1]:
            for node, cpus in job.cpus.items():
                later.free_cpus[node] += cpus
            for node, memory_mb in job.memory_mb.items():
                later.free_memory_mb[node] += memory_mb
            if later.sockets is not None:
                for node, on_sockets in job.socket_cpus.items():
                    later.sockets.free_cpus[node] += np.asarray(on_sockets)
        if later.sockets is not None:
            later.sockets.quiet[:] = True  # all placed jobs have started by then
        for node, slot in reserved:
            later.free[node, slot] = False
        return later


class _Trial(NamedTuple):
    """The set that the policy takes after some ends."""

    time_s: float
    assignment: Assignment
    cluster: Cluster


@dataclass(eq=False)
class _Search:
    """Search for the step after which the policy's set costs the job the least time.

    The time counts from now: of waiting, by its weight, and of running.
    """

    request: Request
    cluster: Cluster
    policy: Policy
    reserved: Collection[Gpu]
    steps: _Steps
    now: float
    weight: float
    goal: float  # Time that is to be beaten.
    best: _Trial | None = None
    left: int = _MOST_TRIALS

    def on_changed_nodes(self) -> None:
        """Try the steps at which a one-node set may cost less time, the most promising first.

        That is exact if the policy's sets reach their bounds, as they do without limits by CPUs,
        memory or links, and without a price for broken-up nodes.
        """
        bound = math.inf
        promising = []
        for index, least in enumerate(self.steps.bound):
            if least < bound:
                bound = least
                promising.append((self._time(index, bound), index))
        for time_s, index in sorted(promising):
            if time_s >= self.goal or not self.left:
                break
            self._try(index)

    def over_several_nodes(self, least: float) -> None:
        """Bisect for the first step with the slowdown of the last one.

        The slowdown over several nodes falls from step to step. ``least``: bound of it.
        """
        low, high = -1, len(self.steps.ends) - 1
        if self._time(0, least) >= self.goal:
            return
        slowdown = self._try(high)
        while high - low > 1 and self.left and self._time(low + 1, slowdown) < self.goal:
            middle = (low + high) // 2
            if self._try(middle) <= slowdown:
                high = middle
            else:
                low = middle

    def _time(self, index: int, slowdown: float) -> float:
        """Time that the job takes after a step, at this slowdown."""
        wait_s = self.steps.ends[index].time_s - self.now
        return self.weight * wait_s + self.request.expected_s * slowdown

    def _try(self, index: int) -> float:
        """Ask the policy after a step; return the slowdown, inf without a set that frees up."""
        self.left -= 1
        later = self.steps.after(index, self.cluster, self.reserved)
        found = self.policy.place(self.request, later)
        if found is None or not _frees_up(found, self.cluster):
            return math.inf
        time_s = self._time(index, found.slowdown)
        if time_s < self.goal:
            self.goal = time_s
            self.best = _Trial(self.steps.ends[index].time_s, found, later)
        return found.slowdown


def _frees_up(found: Assignment, cluster: Cluster) -> bool:
    """Say whether a set has a GPU that is not free now."""
    return any(not cluster.free[node, list(slots)].all() for node, slots in found.gpus)
