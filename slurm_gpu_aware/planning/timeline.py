"""Timeline: ends of running jobs, and the cluster at a later time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import node_demand

__all__ = ["NodeShare", "Timeline", "as_running", "take", "unsure"]


class NodeShare(NamedTuple):
    """Resources of a job on one node besides its GPUs."""

    cpus: int
    memory_mb: int
    socket_cpus: tuple[int, ...] = ()
    """CPUs on each socket; empty if sockets are not known."""
    unsure: tuple[int, ...] = ()
    """GPUs that Slurm may choose instead of the assigned ones when it starts the job."""


def take(cluster: Cluster, request: Request, assignment: Assignment) -> Mapping[int, NodeShare]:
    """Mark an assignment's GPUs, CPUs and memory as held, in place; return them by node.

    Raises ValueError if a GPU is not free.
    """
    held = _beside(cluster, request, assignment)
    for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
        share = held[node]
        cluster.take(node, slots, share.cpus, share.memory_mb, share.socket_cpus)
        cluster.free[node, list(share.unsure)] = False
    return held


def _beside(cluster: Cluster, request: Request, assignment: Assignment) -> dict[int, NodeShare]:
    """Shares of an assignment by node, before anything is marked as held."""
    count = len(assignment.nodes)
    found = {}
    for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
        held = NodeShare(*node_demand(request, count, len(slots)))
        if cluster.sockets is not None:
            chosen = set(slots)
            if not assignment.exact and cluster.indexed[node]:
                # Until the job starts, Slurm may take any free GPU of the node.
                slots = tuple(np.flatnonzero(cluster.free[node]).tolist())
                held = held._replace(unsure=tuple(s for s in slots if s not in chosen))
            held = _on_sockets(cluster, request, held, node, slots)
        found[node] = held
    return found


def _on_sockets(
    cluster: Cluster, request: Request, held: NodeShare, node: int, slots: Sequence[int]
) -> NodeShare:
    """The share with the CPUs of each socket, and with all CPUs that Slurm adds."""
    assert cluster.sockets is not None  # noqa: S101 - the caller checks
    fills = request.bound and request.fills_sockets
    taken = cluster.sockets.share(node, slots, held.cpus, all_free=fills)
    if not fills:
        return held._replace(socket_cpus=taken)
    cpus = max(held.cpus, sum(taken))
    # Slurm takes no more CPUs than there is memory for.
    memory_mb = min(request.memory_mb_per_cpu * cpus, int(cluster.free_memory_mb[node]))
    return held._replace(cpus=cpus, memory_mb=max(held.memory_mb, memory_mb), socket_cpus=taken)


def unsure(held: Mapping[int, NodeShare], now: float) -> list[RunningJob]:
    """The unsure GPUs of a job, as a running job that ends now."""
    gpus = tuple((node, share.unsure) for node, share in held.items() if share.unsure)
    return [RunningJob("(by Slurm)", gpus, now)] if gpus else []


def as_running(
    request: Request,
    assignment: Assignment,
    now: float,
    held: Mapping[int, NodeShare] | None = None,
) -> RunningJob:
    """Return the running job of an assignment made now.

    ``held``: the shares that `take` returned; None: the demand of the request.
    """
    count = len(assignment.nodes)
    gpus = tuple(zip(assignment.nodes, assignment.slots, strict=True))
    if held is None:
        held = {node: NodeShare(*node_demand(request, count, len(slots))) for node, slots in gpus}
    return RunningJob(
        job_id=request.job_id,
        gpus=gpus,
        end_s=now + request.time_limit_s,
        start_s=now,
        node_count=count,
        cpus={node: share.cpus for node, share in held.items()},
        memory_mb={node: share.memory_mb for node, share in held.items()},
        socket_cpus={n: share.socket_cpus for n, share in held.items() if share.socket_cpus},
        app_class=request.app_class,
        application=request.application,
    )


class Timeline:
    """Ends of jobs as flat arrays, so that :meth:`at` needs only a few vector operations.

    An end before ``now`` (a job over its limit) counts as ``now``.
    """

    def __init__(self, jobs: Sequence[RunningJob], now: float) -> None:
        self._gpus = _Ends(
            [
                (node, slot, 1, job.end_s)
                for job in jobs
                for node, slots in job.gpus
                for slot in slots
            ],
            now,
        )
        self._shares = _Ends(
            [
                (node, job.cpus.get(node, 0), job.memory_mb.get(node, 0), job.end_s)
                for job in jobs
                for node in {*job.cpus, *job.memory_mb}
            ],
            now,
        )
        self._sockets = _Ends(
            [
                (node, socket, count, job.end_s)
                for job in jobs
                for node, cpus in job.socket_cpus.items()
                for socket, count in enumerate(cpus)
                if count
            ],
            now,
        )
        ends = {max(job.end_s, now) for job in jobs}
        self.ends: list[float] = sorted(ends)
        """Distinct ends, ascending; inf last if a job has no limit."""

    def at(self, cluster: Cluster, time_s: float) -> Cluster:
        """Return a copy of the cluster without the jobs that end by ``time_s``.

        All placed jobs have started by then, so no GPUs are unsure.
        """
        later = cluster.copy()
        node, slot, _ = self._gpus.by(time_s)
        later.free[node, slot] = later.exists[node, slot]
        node, cpus, memory_mb = self._shares.by(time_s)
        np.add.at(later.free_cpus, node, cpus)
        np.add.at(later.free_memory_mb, node, memory_mb)
        if later.sockets is not None:
            node, socket, cpus = self._sockets.by(time_s)
            np.add.at(later.sockets.free_cpus, (node, socket), cpus)
            later.sockets.quiet[:] = True
        return later


class _Ends:
    """Rows of three whole numbers, each with its end."""

    def __init__(self, rows: Sequence[tuple[int, int, int, float]], now: float) -> None:
        flat = itertools.chain.from_iterable(rows)
        table = np.fromiter(flat, dtype=np.float64, count=4 * len(rows)).reshape(-1, 4)
        self._numbers: IntArray = table[:, :3].astype(np.int64)
        self._end = np.maximum(table[:, 3], now)

    def by(self, time_s: float) -> IntArray:
        """(3, n) rows that have ended by then, as columns."""
        return self._numbers[self._end <= time_s].T
