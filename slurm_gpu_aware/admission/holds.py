"""Resources that jobs hold: of released jobs that have not started, and free cores by socket.

A node's ``Gres`` names the socket of a GPU (``gpu:g0:1(S:0)``), a job's record its cores.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.admission.fitting import binds_sockets, fills_sockets
from slurm_gpu_aware.admission.node_use import gets_whole_nodes, is_alone, sharing_of
from slurm_gpu_aware.admission.sizes import least_with_gpus
from slurm_gpu_aware.bounds import slot_of
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import gpus_per_node
from slurm_gpu_aware.gate.resizing import as_shown
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob, Sockets
from slurm_gpu_aware.model.request import Sharing
from slurm_gpu_aware.slurm.gres import bound_slots, shards_of
from slurm_gpu_aware.slurm.records import (
    HOLDING_CPUS,
    NodeCores,
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
)


@dataclass(frozen=True)
class Hold:
    """Resources of a released job that Slurm has not started yet."""

    job_id: str
    nodes: tuple[str, ...]
    slots: tuple[int, ...]  # The same on each node; empty if Slurm chooses the GPUs.
    gpus_per_node: int
    cpus_per_node: int
    memory_mb_per_node: int
    end_s: float
    app_class: str | None = None
    whole_node: bool = False  # It gets all GPUs and CPUs of its nodes.
    shards: int = 0  # It gets shards of its one GPU; 0: the whole GPU.
    fills_sockets: bool = False
    """It gets all free CPUs beside its GPUs, each with ``memory_mb_per_cpu``."""
    memory_mb_per_cpu: int = 0
    victims: frozenset[str] = frozenset()  # Jobs that Slurm preempts for it.
    user: str = ""
    alone: bool = False  # It shares its nodes with jobs of its own user only.
    sharing: Sharing = Sharing()  # noqa: RUF009 - it is frozen
    gpus: int = 0
    """GPUs on all of ``nodes`` together, of which Slurm chooses some; 0: it is no such job."""
    emptiest: bool = False  # Slurm gives it whole nodes: the emptiest ones stand for them.


def hold_of(
    gated: GatedJob,
    slurm: SlurmConfig,
    partitions: Mapping[str, SlurmPartition],
    app_class: str,
    now: float,
    *,
    victims: frozenset[str],
) -> Hold:
    """The hold of a released job that is bound to nodes; ``now`` is in Unix seconds.

    Its limit counts from when its gate opened: as long as it does not start its end would move, and
    with it the promised start of jobs that wait for its GPUs.
    """
    job, original = gated.job, gated.original
    nodes = len(job.req_nodes)
    slots = bound_slots(job) or ()
    gpus = len(slots) or gpus_per_node(as_shown(job, original), nodes)
    cpus, memory_mb = least_with_gpus(job, original, slurm, partitions)
    return Hold(
        job_id=job.id,
        nodes=job.req_nodes,
        slots=slots,
        gpus_per_node=gpus,
        # The record shows defaults per GPU only after Slurm has tried the job.
        cpus_per_node=max(-(-job.cpus // nodes), cpus * gpus),
        memory_mb_per_node=max(job.req_tres.get("mem", 0) // nodes, memory_mb * gpus),
        end_s=gated.opened_s(now) + job.longest_s,
        app_class=app_class,
        whole_node=original.exclusive or gets_whole_nodes(job, partitions),
        fills_sockets=binds_sockets(job, slurm) and fills_sockets(original, nodes),
        memory_mb_per_cpu=job.memory_mb_per_cpu or 0,
        victims=victims,
        shards=shards_of(original.tres_per_node),
        user=job.user,
        alone=is_alone(job, partitions),
        sharing=sharing_of(job, partitions),
    )


def as_running(hold: Hold, places: Mapping[str, int], usable: BoolArray, now: float) -> RunningJob:
    """A hold as a running job; if Slurm chooses the GPUs, any usable ones stand for them."""
    here = [places[name] for name in hold.nodes if name in places]
    if hold.gpus:
        return _any_of(hold, here, usable, now)
    most = None if hold.whole_node else hold.gpus_per_node
    return RunningJob(
        job_id=hold.job_id,
        gpus=tuple(
            (i, hold.slots or tuple(np.flatnonzero(usable[i])[:most].tolist())) for i in here
        ),
        end_s=hold.end_s if math.isinf(hold.end_s) else max(now, hold.end_s),
        cpus=dict.fromkeys(here, hold.cpus_per_node),
        memory_mb=dict.fromkeys(here, hold.memory_mb_per_node),
        app_class=hold.app_class,
        user=hold.user,
        alone=hold.alone,
        sharing=hold.sharing.planned,
    )


def _any_of(hold: Hold, here: Sequence[int], free: BoolArray, now: float) -> RunningJob:
    """A hold of which Slurm chooses the nodes, too: its GPUs on the fullest ones stand for them."""
    gpus: list[tuple[int, tuple[int, ...]]] = []
    missing, sign = hold.gpus, -1 if hold.emptiest else 1
    for i in sorted(here, key=lambda i: (sign * int(free[i].sum()), i)):
        if missing and (slots := np.flatnonzero(free[i])[:missing].tolist()):
            gpus.append((i, tuple(slots)))
            missing -= len(slots)
    return RunningJob(
        job_id=hold.job_id,
        gpus=tuple(gpus),
        end_s=hold.end_s if math.isinf(hold.end_s) else max(now, hold.end_s),
        app_class=hold.app_class,
        user=hold.user,
        alone=hold.alone,
        sharing=hold.sharing.planned,
    )


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
