"""Timeline: until when jobs hold GPUs, and the cluster at a later time."""

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

__all__ = ["Held", "Timeline", "as_running", "take", "unsure"]


class Held(NamedTuple):
    """What a job takes on one node beside its GPUs."""

    cpus: int
    memory_mb: int
    socket_cpus: tuple[int, ...] = ()
    """Of each socket; empty where sockets are not known."""
    unsure: tuple[int, ...] = ()
    """GPUs that it may get instead of those it counts with: Slurm chooses when it starts it."""


def take(cluster: Cluster, request: Request, assignment: Assignment) -> Mapping[int, Held]:
    """Mark an assignment's GPUs, CPUs and memory as held, in place; return them by node.

    Raises ValueError if a GPU is not free.
    """
    held = _beside(cluster, request, assignment)
    for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
        share = held[node]
        cluster.take(node, slots, share.cpus, share.memory_mb, share.socket_cpus)
        cluster.free[node, list(share.unsure)] = False
    return held


def _beside(cluster: Cluster, request: Request, assignment: Assignment) -> dict[int, Held]:
    """What an assignment takes beside its GPUs, by node, as long as nothing is marked as held."""
    count = len(assignment.nodes)
    found = {}
    for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
        held = Held(*node_demand(request, count, len(slots)))
        if cluster.sockets is not None:
            chosen = set(slots)
            if not assignment.exact and cluster.indexed[node]:
                # Others are sent there by name: none of the free ones is safe until it has started.
                slots = tuple(np.flatnonzero(cluster.free[node]).tolist())
                held = held._replace(unsure=tuple(s for s in slots if s not in chosen))
            held = _on_sockets(cluster, request, held, node, slots)
        found[node] = held
    return found


def _on_sockets(
    cluster: Cluster, request: Request, held: Held, node: int, slots: Sequence[int]
) -> Held:
    """The same with the sockets, and with all CPUs that Slurm gives beside the GPUs."""
    assert cluster.sockets is not None  # noqa: S101 - the caller has looked
    fills = request.bound and request.fills_sockets
    taken = cluster.sockets.share(node, slots, held.cpus, all_free=fills)
    if not fills:
        return held._replace(socket_cpus=taken)
    cpus = max(held.cpus, sum(taken))
    # Slurm takes no more CPUs than there is memory for.
    memory_mb = min(request.memory_mb_per_cpu * cpus, int(cluster.free_memory_mb[node]))
    return held._replace(cpus=cpus, memory_mb=max(held.memory_mb, memory_mb), socket_cpus=taken)


def unsure(held: Mapping[int, Held], now: float) -> list[RunningJob]:
    """GPUs that a job may get instead of others, as a job that ends when it has started."""
    gpus = tuple((node, share.unsure) for node, share in held.items() if share.unsure)
    return [RunningJob("(by Slurm)", gpus, now)] if gpus else []


def as_running(
    request: Request,
    assignment: Assignment,
    now: float,
    held: Mapping[int, Held] | None = None,
) -> RunningJob:
    """Return an assignment made now as the running job that it becomes.

    ``held``: what `take` has marked as held for it; None: what it asks for.
    """
    count = len(assignment.nodes)
    gpus = tuple(zip(assignment.nodes, assignment.slots, strict=True))
    if held is None:
        held = {node: Held(*node_demand(request, count, len(slots))) for node, slots in gpus}
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
    """Ends of jobs as flat arrays, so that the cluster at any time is a few vector operations.

    Ends before ``now`` (jobs over their limit, about to go) count as ``now``.
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
        """Return a copy of the cluster with everything given back that ends by ``time_s``.

        What was placed has started by then, so that no GPUs are unsure.
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
    """Rows of three whole numbers, each with the time at which it ends."""

    def __init__(self, rows: Sequence[tuple[int, int, int, float]], now: float) -> None:
        flat = itertools.chain.from_iterable(rows)
        table = np.fromiter(flat, dtype=np.float64, count=4 * len(rows)).reshape(-1, 4)
        self._numbers: IntArray = table[:, :3].astype(np.int64)
        self._end = np.maximum(table[:, 3], now)

    def by(self, time_s: float) -> IntArray:
        """(3, n) rows that have ended by then, as columns."""
        return self._numbers[self._end <= time_s].T
