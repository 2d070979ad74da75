"""Free cores by socket, for jobs that need CPUs on the sockets of their GPUs.

A node's ``Gres`` names the socket of a GPU (``gpu:g0:1(S:0)``), a job's record its cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Sockets
from slurm_gpu_aware.names import slot_of
from slurm_gpu_aware.slurm.records import HOLDING_CPUS, NodeCores, SlurmJob, SlurmNode

__all__ = ["with_sockets"]


def with_sockets(
    cluster: Cluster,
    nodes: Mapping[str, SlurmNode],
    jobs: Sequence[SlurmJob],
    holds: Sequence[Hold],
    now: float,
) -> Cluster:
    """The cluster with the free cores beside each GPU.

    ``holds`` are those of the cluster. A hold without slots on an indexed node, where Slurm
    chooses, keeps all other jobs from the node until its job has started.
    """
    here = [nodes[name] for name in cluster.nodes]
    places = {name: i for i, name in enumerate(cluster.nodes)}
    keeping = {job.id: job for job in jobs if job.state in HOLDING_CPUS and job.shares}
    sockets = _read(here, keeping.values(), cluster.shape[1])
    many = sockets.cpus.shape[1]
    running = {
        job.job_id: replace(job, socket_cpus=_held(keeping[job.job_id], places, here, many))
        if job.job_id in keeping
        else job
        for job in cluster.running
    }
    result = replace(cluster.copy(), sockets=sockets)
    unsure: list[RunningJob] = []
    for hold in holds:
        held = running.get(hold.job_id)
        if held is not None:
            running[hold.job_id] = _promise(result, hold, held)
            unsure += _unsure(result, hold, held, now)
    return replace(result, running=(*running.values(), *unsure))


def _read(nodes: Sequence[SlurmNode], jobs: Iterable[SlurmJob], width: int) -> Sockets:
    """Sockets with the free CPUs that the jobs leave.

    Allocated CPUs of a node that no known job holds are subtracted on each of its sockets.
    """
    many = max((node.cores.sockets for node in nodes if node.cores), default=1)
    gpu = np.full((len(nodes), width), -1, dtype=np.int64)
    cpus = np.zeros((len(nodes), many), dtype=np.int64)
    free = cpus.copy()
    places = {node.name: i for i, node in enumerate(nodes)}
    held = [0] * len(nodes)
    for job in jobs:
        for share in job.shares:
            i = places.get(share.node)
            if i is not None and nodes[i].cores is not None:
                held[i] |= _core_bits(share.cores or (), 1)
    for i, node in enumerate(nodes):
        if node.cores is None:
            continue
        for slot, socket in _bound_to(node.gpus, node.gpu_sockets, node.cores.sockets):
            gpu[i, slot] = socket
        special = _core_bits(tuple(node.cores.special), node.cores.threads)
        busy = np.array(_by_socket(held[i] & ~special, node.cores, many))
        cpus[i, : node.cores.sockets] = node.cores.cpus * node.cores.cores
        cpus[i] -= _by_socket(special, node.cores, many)
        free[i] = cpus[i] - busy - max(0, node.cpus_used - int(busy.sum()))
    return Sockets(
        gpu=gpu,
        cpus=cpus,
        free_cpus=np.maximum(free, 0),
        per_core=np.array([node.cores.cpus if node.cores else 1 for node in nodes], np.int64),
        quiet=np.ones(len(nodes), dtype=np.bool_),
    )


@lru_cache(maxsize=256)  # a site has few kinds of nodes
def _bound_to(
    gpus: tuple[tuple[str | None, int], ...],
    gpu_sockets: tuple[tuple[int, ...] | None, ...],
    sockets: int,
) -> tuple[tuple[int, int], ...]:
    """(GPU index, socket) of GPUs that are bound to one socket, or of all if there is only one."""
    pairs: list[tuple[int, int]] = []
    first = 0
    for (kind, count), bound in zip(gpus, gpu_sockets, strict=True):
        slot = slot_of(kind) if count == 1 else None
        slots = range(first, first + count) if slot is None else [slot]
        first += count
        if sockets == 1:
            bound = (0,)
        if bound is not None and len(bound) == 1 and bound[0] < sockets:
            pairs += [(each, bound[0]) for each in slots]
    return tuple(pairs)


@lru_cache(maxsize=1 << 14)
def _core_bits(cpu_ids: tuple[int, ...], threads: int) -> int:
    """Cores of CPU ids, with ``threads`` ids per core: bit N stands for core N of the node."""
    bits = 0
    for cpu in cpu_ids:
        bits |= 1 << (cpu // threads)
    return bits


def _by_socket(core_bits: int, cores: NodeCores, many: int) -> tuple[int, ...]:
    """(S,) CPUs of these cores, on each of ``many`` sockets."""
    whole = (1 << cores.cores) - 1
    return tuple(
        cores.cpus * (core_bits >> socket * cores.cores & whole).bit_count()
        if socket < cores.sockets
        else 0
        for socket in range(many)
    )


def _held(
    job: SlurmJob, places: Mapping[str, int], nodes: Sequence[SlurmNode], many: int
) -> dict[int, tuple[int, ...]]:
    """Place of a node -> CPUs that the job holds on each socket; without unknown ones."""
    cpus = {}
    for share in job.shares:
        i = places.get(share.node)
        if i is not None and (cores := nodes[i].cores) is not None and share.cores:
            cpus[i] = _by_socket(_core_bits(share.cores, 1), cores, many)
    return cpus


def _promise(cluster: Cluster, hold: Hold, held: RunningJob) -> RunningJob:
    """Subtract the cores of a placed job that Slurm has not started; changes the cluster."""
    sockets = cluster.sockets
    assert sockets is not None  # noqa: S101 - the caller has set it
    cpus, memory_mb, on_sockets = dict(held.cpus), dict(held.memory_mb), {}
    for i, slots in held.gpus:
        if hold.whole_node:
            share = tuple(sockets.free_cpus[i].tolist())
        else:
            if not hold.slots:  # Slurm chooses
                slots = (*slots, *np.flatnonzero(cluster.free[i]).tolist())
            cpus_here, fills = hold.cpus_per_node, hold.fills_sockets
            share = sockets.share(i, slots, cpus_here, all_free=fills)
        more = sum(share) - hold.cpus_per_node
        if hold.fills_sockets and not hold.whole_node and more > 0:
            also_mb = min(more * hold.memory_mb_per_cpu, int(cluster.free_memory_mb[i]))
            cluster.free_cpus[i] = max(0, cluster.free_cpus[i] - more)
            cluster.free_memory_mb[i] -= also_mb
            cpus[i] += more
            memory_mb[i] += also_mb
        sockets.free_cpus[i] -= np.array(share, dtype=np.int64)
        sockets.quiet[i] = False
        on_sockets[i] = share
    return replace(held, cpus=cpus, memory_mb=memory_mb, socket_cpus=on_sockets)


def _unsure(cluster: Cluster, hold: Hold, held: RunningJob, now: float) -> list[RunningJob]:
    """Reserve the GPUs that Slurm may choose for a hold, by a running job that ends at once."""
    if hold.slots or hold.whole_node:
        return []
    gpus = []
    for i, _ in held.gpus:
        if cluster.indexed[i]:
            gpus.append((i, tuple(np.flatnonzero(cluster.free[i]).tolist())))
            cluster.free[i] = False
    return [RunningJob("(by Slurm)", tuple(gpus), now)] if gpus else []
