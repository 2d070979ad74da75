"""Timeline: ends of running jobs, and the cluster at a later time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment, RunningJobs
from slurm_gpu_aware.model.cluster import Cluster, Gpus, RunningJob
from slurm_gpu_aware.model.node_users import NodeUsers
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import node_demand
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.left_to_slurm import left_demand
from slurm_gpu_aware.placement.shapes import least_largest, splits


class NodeShare(NamedTuple):
    """Resources of a job on one node besides its GPUs."""

    cpus: int
    memory_mb: int
    socket_cpus: tuple[int, ...] = ()  # CPUs on each socket; empty if sockets are not known.
    unsure: tuple[int, ...] = ()
    """GPUs that Slurm may choose instead of the assigned ones when it starts the job."""


def take(cluster: Cluster, request: Request, assignment: Assignment) -> Mapping[int, NodeShare]:
    """Mark an assignment's GPUs, CPUs and memory as held, in place; return them by node.

    Raises ValueError if a GPU is not free.
    """
    return hold(cluster, request, assignment.gpus, exact=assignment.exact)


def hold(cluster: Cluster, request: Request, gpus: Gpus, *, exact: bool) -> Mapping[int, NodeShare]:
    """Mark GPUs and the CPUs and memory of a request as held, as :func:`take` does."""
    held = {}
    if request.left is not None:
        return _hold_by_slurm(cluster, request, gpus)
    for node, slots in gpus:
        share = NodeShare(*node_demand(request, len(gpus), len(slots)))
        if request.memory.whole:
            share = share._replace(memory_mb=max(0, int(cluster.free_memory_mb[node])))
        if cluster.sockets is not None:
            possible = slots
            if not exact and cluster.indexed[node]:
                # Until the job starts, Slurm may take any free GPU of the node.
                possible = tuple(np.flatnonzero(cluster.free[node]).tolist())
                share = share._replace(unsure=tuple(s for s in possible if s not in slots))
            share = _on_sockets(cluster, request, share, node, possible)
        cluster.take(node, slots, share.cpus, share.memory_mb, share.socket_cpus)
        if share.unsure:
            cluster.free[node, list(share.unsure)] = False
        held[node] = share
        if cluster.starting is not None:
            cluster.starting[node] = True
    occupy(cluster, request, gpus)
    cluster.draw(request.power_w)
    return held


def occupy(cluster: Cluster, request: Request, gpus: Gpus) -> None:
    """Count the job on its nodes, in place, where Slurm keeps jobs of users apart."""
    if cluster.users is not None:
        own, nodes = request.nodes, [node for node, _ in gpus]
        cluster.users.add(request.user, nodes, alone=own.alone, sharing=own.sharing.planned)


def _hold_by_slurm(cluster: Cluster, request: Request, gpus: Gpus) -> Mapping[int, NodeShare]:
    """Mark GPUs of a job whose GPUs Slurm chooses: which of its nodes' GPUs it gets is open."""
    assert cluster.by_slurm is not None  # noqa: S101 - see `place_round`
    assert request.left is not None  # noqa: S101 - the caller has checked
    held, demand = {}, left_demand(request, gpus)
    for node, slots in gpus:
        cluster.choose(node, slots)
        share = NodeShare(*demand[node])
        if request.nodes.whole:  # nothing is left beside it
            cpus, memory_mb = cluster.free_cpus[node], cluster.free_memory_mb[node]
            share = NodeShare(max(0, int(cpus)), max(0, int(memory_mb)))
        if cluster.sockets is not None:
            possible = np.flatnonzero(cluster.not_held[node]).tolist()
            share = _on_sockets(cluster, request, share, node, possible)
        cluster.take(node, slots, share.cpus, share.memory_mb, share.socket_cpus)
        held[node] = share
    nodes = np.isin(np.arange(cluster.shape[0]), [node for node, _ in gpus])
    if request.left.fixed:
        nodes = np.ones_like(nodes) if request.nodes.eligible is None else request.nodes.eligible
    cluster.leave_to_slurm(nodes)
    occupy(cluster, request, gpus)
    cluster.draw(request.power_w)
    return held


def _on_sockets(
    cluster: Cluster, request: Request, held: NodeShare, node: int, slots: Sequence[int]
) -> NodeShare:
    """The share with the CPUs of each socket, and with all CPUs that Slurm adds."""
    assert cluster.sockets is not None  # noqa: S101 - the caller checks
    fills = request.sockets.takes_all
    taken = cluster.sockets.share(node, slots, held.cpus, all_free=fills)
    if not fills:
        return held._replace(socket_cpus=taken)
    cpus = max(held.cpus, sum(taken))
    # Slurm takes no more CPUs than there is memory for.
    memory_mb = min(request.memory.per_cpu_mb * cpus, int(cluster.free_memory_mb[node]))
    return held._replace(cpus=cpus, memory_mb=max(held.memory_mb, memory_mb), socket_cpus=taken)


def as_running(
    request: Request, assignment: Assignment, now: float, held: Mapping[int, NodeShare]
) -> RunningJob:
    """Return the running job of an assignment made now; ``held``: the result of :func:`take`."""
    return RunningJob(
        job_id=request.job_id,
        gpus=assignment.gpus,
        end_s=now + request.time_limit_s,
        start_s=now,
        expected_end_s=now + min(request.expected_s * assignment.slowdown, request.time_limit_s),
        node_count=len(assignment.nodes),
        cpus={node: share.cpus for node, share in held.items()},
        memory_mb={node: share.memory_mb for node, share in held.items()},
        socket_cpus={n: share.socket_cpus for n, share in held.items() if share.socket_cpus},
        app_class=request.app_class,
        application=request.application,
        power_w=request.power_w,
        user=request.user,
        alone=request.nodes.alone,
        sharing=request.nodes.sharing.planned,
    )


def keep_least(target: Cluster, one: Cluster, other: Cluster, rows: list[int] | slice) -> None:
    """Set the free resources of nodes of ``target`` to those that are free in both, in place."""
    target.free[rows] = one.free[rows] & other.free[rows]
    if target.by_slurm is not None:
        both = one.not_held[rows] & other.not_held[rows]
        target.by_slurm[rows] = both & ~target.free[rows]
    if target.starting is not None and one.starting is not None:
        target.starting[rows] = one.starting[rows]
    target.free_cpus[rows] = np.minimum(one.free_cpus[rows], other.free_cpus[rows])
    target.free_memory_mb[rows] = np.minimum(one.free_memory_mb[rows], other.free_memory_mb[rows])
    if target.power_w is not None and one.power_w is not None and other.power_w is not None:
        (left, ours), (left_too, ours_too) = one.power_w.tolist(), other.power_w.tolist()
        target.power_w[:] = min(left, left_too), max(ours, ours_too)
    if target.users and one.users and other.users:
        target.users.keep_most(one.users, other.users, rows)
    if (own := target.sockets) and (first := one.sockets) and (second := other.sockets):
        own.free_cpus[rows] = np.minimum(first.free_cpus[rows], second.free_cpus[rows])
        own.quiet[rows] = first.quiet[rows] & second.quiet[rows]


def left_behind(here: Cluster, after: Cluster, name: str, end_s: float) -> RunningJob:
    """Resources that are free in ``after`` and not yet in ``here``, as a job that ends then."""
    node, slot = np.nonzero(after.free & ~here.free)
    cpus = after.free_cpus - here.free_cpus
    memory = after.free_memory_mb - here.free_memory_mb
    power_w = 0.0
    if after.power_w is not None and here.power_w is not None:
        power_w = float(after.power_w[0] - here.power_w[0])
    more = np.zeros((len(cpus), 1), dtype=np.int64)
    if after.sockets is not None and here.sockets is not None:
        more = after.sockets.free_cpus - here.sockets.free_cpus
    return RunningJob(
        job_id=name,
        gpus=tuple((int(n), (int(s),)) for n, s in zip(node, slot, strict=True)),
        end_s=end_s,
        cpus={int(n): int(cpus[n]) for n in np.flatnonzero(cpus)},
        memory_mb={int(n): int(memory[n]) for n in np.flatnonzero(memory)},
        socket_cpus={int(n): tuple(more[n].tolist()) for n in np.flatnonzero(more.any(axis=1))},
        power_w=power_w,
    )


class Timeline:
    """Ends of jobs by GPU, so that :meth:`at` needs only a few vector operations.

    An end before ``now`` (a job over its limit) counts as ``now``.
    """

    def __init__(
        self,
        running: Sequence[RunningJob],
        now: float,
        started: Sequence[RunningJob] = (),
        reserved: Sequence[RunningJob] = (),
    ) -> None:
        """Ends of these jobs.

        ``started``: more jobs, those of the round. ``reserved``: what holds GPUs instead of the
        jobs that hold them now, which stay reserved until its end.
        """
        self._running = RunningJobs.of(running)
        self._started = started
        self._reserved = reserved
        self.now = now
        self._latest: FloatArray | None = None
        self._by_user: _Rows | None = None
        """Rows of `NodeUsers.rows`."""

    def passed(self, request: Request) -> list[RunningJob]:
        """The jobs that passed a request.

        Those are jobs without GPUs, which wait for no turn, of other users and of no higher place
        that have started since the request came; by Slurm's whole seconds also one that was there
        just before.
        """
        since_s = request.submit_s + request.wait.ineligible_s
        return [
            job
            for job in self._running.beside_gpus
            if not job.gpus and job.start_s >= since_s and job.standing <= request.priority
            if not (job.user and job.user == request.user)
        ]

    def ending(self, jobs: Iterable[RunningJob], times: float) -> Timeline:
        """The same, but some of the running jobs end when they have run so many times as long."""
        ends = {id(j): self.now + (times - 1.0) * (self.now - j.start_s) for j in jobs}
        running = [
            replace(j, end_s=min(j.end_s, ends[id(j)])) if id(j) in ends else j
            for j in self._running
        ]
        return Timeline(running, self.now, self._started, self._reserved)

    @cached_property
    def ends(self) -> list[float]:
        """Distinct ends, ascending; inf last if a job has no limit."""
        every = (*self._running, *self._started, *self._reserved)
        ends = np.array([job.end_s for job in every], dtype=np.float64)
        distinct: list[float] = np.unique(np.maximum(ends, self.now)).tolist()
        return distinct

    def at(self, cluster: Cluster, time_s: float) -> Cluster:
        """Return a copy of the cluster without the jobs that end by ``time_s``."""
        later = cluster.copy()
        if later.by_slurm is not None:
            later.free[:] = later.not_held
            none = np.zeros_like(later.by_slurm)
            later = replace(later, by_slurm=none, starting=None)  # all have started by then
        if self._running or self._started or self._reserved:
            later.free[later.exists & (self._until(cluster) <= time_s)] = True
        if self._holding:
            node, cpus, memory_mb = self._shares.by(time_s)
            np.add.at(later.free_cpus, node, cpus)
            np.add.at(later.free_memory_mb, node, memory_mb)
        if later.sockets is not None:
            node, socket, cpus = self._sockets.by(time_s)
            np.add.at(later.sockets.free_cpus, (node, socket), cpus)
            later.sockets.quiet[:] = True  # all placed jobs have started by then
        if later.power_w is not None:
            ends, power_w, ours_w = self._powers
            left, ours = float(power_w[ends <= time_s].sum()), float(ours_w[ends <= time_s].sum())
            later.power_w[:] += (left, -ours)
        if later.users is not None:
            self._part_users(later.users, time_s)
        return later

    def _part_users(self, users: NodeUsers, time_s: float) -> None:
        """Count only the jobs that run at a time, and what is reserved until later, in place."""
        if self._by_user is None:
            parts = [(job.end_s, users.rows(job)) for job in (*self._running, *self._started)]
            self._by_user = _Rows.of(parts, self.now)
        users.count(self._by_user.by(time_s), -1)
        for job in self._reserved:
            if job.end_s > time_s:
                users.add(job.user, job.on_nodes, alone=job.alone, sharing=job.sharing)

    def earliest(self, request: Request, cluster: Cluster) -> float:
        """Time before which too few GPUs are free for a request; inf: it never has enough."""
        until = self._until(cluster)
        times = np.where(np.isnan(until), math.inf, np.maximum(until, self.now))
        if request.left is not None:
            return self.now  # a lower bound
        times[cluster.not_held] = self.now
        allowed = allowed_nodes(request, cluster)
        if allowed is not None:
            times[~allowed] = math.inf
        bounds = (least_largest(times, split, request.gpus) for split in splits(request, cluster))
        return min(bounds, default=math.inf)

    def _until(self, cluster: Cluster) -> FloatArray:
        """(N, W) time at which each GPU becomes free; NaN: no job holds it."""
        if self._latest is None:
            self._latest = self._running.until(cluster.shape)
            if self._started or self._reserved:
                self._latest = self._latest.copy()
            for job in self._started:
                for node, slots in job.gpus:
                    held = node, list(slots)
                    self._latest[held] = np.fmin(self._latest[held], job.end_s)
            for job in self._reserved:
                for node, slots in job.gpus:
                    self._latest[node, list(slots)] = job.end_s
        return self._latest

    @cached_property
    def _holding(self) -> list[RunningJob]:
        """Jobs that hold CPUs or memory."""
        return [*self._running.beside_gpus, *(job for job in self._started if job.beside_gpus)]

    @cached_property
    def _powers(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(J,) end of each job, its power, and its power if it is of a job of ours."""
        rows = [
            (job.end_s, job.power_w, job.power_w if job.power_is_ours else 0.0)
            for job in (*self._running, *self._started)
        ]
        ends, powers, ours = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return np.maximum(ends, self.now), powers, ours

    @cached_property
    def _shares(self) -> _Rows:
        """(node, CPUs, memory) of each job's nodes."""
        return _Rows.of([(job.end_s, _shares_of(job)) for job in self._holding], self.now)

    @cached_property
    def _sockets(self) -> _Rows:
        """(node, socket, CPUs)."""
        return _Rows.of([(job.end_s, _cores_of(job)) for job in self._holding], self.now)


def _shares_of(job: RunningJob) -> list[tuple[int, int, int]]:
    nodes = {*job.cpus, *job.memory_mb}
    return [(node, job.cpus.get(node, 0), job.memory_mb.get(node, 0)) for node in nodes]


def _cores_of(job: RunningJob) -> list[tuple[int, int, int]]:
    shares = job.socket_cpus.items()
    return [(node, at, count) for node, cpus in shares for at, count in enumerate(cpus) if count]


class _Rows(NamedTuple):
    """Rows of three whole numbers, each with its end."""

    numbers: IntArray
    end: FloatArray

    @classmethod
    def of(cls, parts: Iterable[tuple[float, list[tuple[int, int, int]]]], now: float) -> Self:
        """The rows of all jobs; ``parts``: end and rows of each."""
        found = [(max(end_s, now), row) for end_s, rows in parts for row in rows]
        numbers = np.array([row for _, row in found], dtype=np.int64).reshape(-1, 3)
        return cls(numbers, np.array([end_s for end_s, _ in found], dtype=np.float64))

    def by(self, time_s: float) -> IntArray:
        """(3, n) rows that have ended by then, as columns."""
        return self.numbers[self.end <= time_s].T
