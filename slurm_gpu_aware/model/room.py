"""CPUs and memory beside GPUs: what a request takes of a node, and which nodes have it."""

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request


def node_demand(request: Request, nodes: int, gpus_here: int) -> tuple[int, int]:
    """CPUs and memory (MB) that the job takes on a node that gives ``gpus_here`` of its GPUs.

    Slurm's even share for an even split or ``--exclusive``, else in proportion to the GPUs.
    """
    total = request.total_cpus
    if request.nodes.whole or gpus_here * nodes == request.gpus:
        return request.cpus_on_node(nodes), request.memory_on_node(nodes)
    cpus = -(-total * gpus_here // request.gpus)
    return cpus, request.memory.needed_mb(cpus, gpus_here)


def all_memory_free(cluster: Cluster) -> BoolArray:
    """(N,) nodes of whose memory no job holds any, as far as is known."""
    if cluster.memory_mb is None:
        return np.ones(cluster.shape[0], dtype=np.bool_)
    return np.asarray(cluster.free_memory_mb >= cluster.memory_mb)


def room_beside(
    request: Request, cluster: Cluster, cpus: int, memory_mb: int
) -> tuple[BoolArray, BoolArray]:
    """(N,) nodes with the CPUs of a request beside its GPUs; (N,) those with the memory as well.

    ``cpus``, ``memory_mb``: its share of each node (`node_demand`).
    """
    with_cpus = cluster.free_cpus >= cpus
    if request.nodes.whole and cluster.cpus is not None:
        with_cpus &= cluster.free_cpus >= cluster.cpus
    with_both = with_cpus & (cluster.free_memory_mb >= memory_mb) if memory_mb > 0 else with_cpus
    if request.memory.whole:
        with_both = with_both & all_memory_free(cluster)
    return with_cpus, with_both
