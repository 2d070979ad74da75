"""Free cores by socket, for jobs that need CPUs on the sockets of their GPUs.

A node's ``Gres`` names the socket of a GPU (``gpu:g0:1(S:0)``), a job's record its cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Sockets
from slurm_gpu_aware.names import slot_of
from slurm_gpu_aware.slurm.records import HOLDING_CPUS, NodeCores, SlurmJob, SlurmNode


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
    known = {i: node.cores for i, node in enumerate(here) if node.cores is not None}
    places = {here[i].name: i for i in known}
    bits_of = {
        job.id: {
            places[share.node]: _core_bits(share.cores, 1)
            for share in job.shares
            if share.cores and share.node in places
        }
        for job in jobs
        if job.state in HOLDING_CPUS
    }
    taken = dict.fromkeys(known, 0)
    for on_nodes in bits_of.values():
        for i, bits in on_nodes.items():
            taken[i] |= bits
    sockets = _sockets(here, known, taken, cluster.shape[1])
    many = sockets.cpus.shape[1]
    running = {}
    for job in cluster.running:
        own = bits_of.get(job.job_id, {})
        on_sockets = {i: _by_socket(bits, known[i], many) for i, bits in own.items()}
        running[job.job_id] = replace(job, socket_cpus=on_sockets)
    result = replace(cluster.copy(), sockets=sockets)
    unsure: list[RunningJob] = []
    for hold in holds:
        held = running.get(hold.job_id)
        if held is not None:
            running[hold.job_id] = _promise(result, hold, held)
            unsure += _unsure(result, hold, held, now)
    return replace(result, running=(*running.values(), *unsure))


def _sockets(
    nodes: Sequence[SlurmNode], known: Mapping[int, NodeCores], taken: Mapping[int, int], width: int
) -> Sockets:
    """Sockets of nodes with ``known`` cores, and their free CPUs without ``taken`` cores (bits)."""
    many = max((cores.sockets for cores in known.values()), default=1)
    gpu = np.full((len(nodes), width), -1, dtype=np.int64)
    cpus = np.zeros((len(nodes), many), dtype=np.int64)
    free = cpus.copy()
    for i, cores in known.items():
        node = nodes[i]
        for slot, socket in _bound_to(node.gpus, node.gpu_sockets, cores.sockets):
            gpu[i, slot] = socket
        special = _core_bits(tuple(cores.special), cores.threads)
        busy = np.array(_by_socket(taken[i] & ~special, cores, many))
        cpus[i, : cores.sockets] = cores.cpus * cores.cores
        cpus[i] -= _by_socket(special, cores, many)
        # CPUs that no known job holds may be on any socket.
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
    return sum(1 << core for core in {cpu // threads for cpu in cpu_ids})


def _by_socket(core_bits: int, cores: NodeCores, many: int) -> tuple[int, ...]:
    """(S,) CPUs of these cores, on each of ``many`` sockets."""
    whole = (1 << cores.cores) - 1
    on_each = (core_bits >> socket * cores.cores & whole for socket in range(cores.sockets))
    counts = [cores.cpus * bits.bit_count() for bits in on_each]
    return (*counts, *[0] * (many - cores.sockets))


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
