"""Distances in the physical graph, by the level that a path crosses (Amaral et al., SC'17, eq. 3).

The numbers say which level a path crosses; they are not latencies. In the paper a path inside a
socket counts 1 and a path across sockets 20; the other values are ours:

================ ======== ===================================================
path             distance nvidia-smi's class
================ ======== ===================================================
linked GPUs      1        NVn
same switch      1        PIX, PXB
same socket      10       PHB, NODE
across sockets   20       SYS
across machines  100, 200, ...  per network level, from the tightest
================ ======== ===================================================

A direct NVLink is the shortest path even across sockets. No path leads through a third GPU, because
links do not forward traffic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology.subsets import mask_of, slots_of

_LINKED, _NETWORK = 1, 100
_DISTANCE = {"X": 0, "PHB": 10, "NODE": 10, "SYS": 20}


@lru_cache(maxsize=1024)
def distances(graph: HardwareGraph) -> IntArray:
    """(n, n) shortest path lengths between the GPUs of a machine. Read-only."""
    found = np.array(
        [[_DISTANCE.get(word, _LINKED) for word in row] for row in graph.classes], dtype=np.int64
    ).reshape(graph.n, graph.n)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=1 << 16)
def path_sum(graph: HardwareGraph, gpus: int) -> int:
    """t (eq. 3): sum of path lengths over all pairs of the GPUs of a mask."""
    slots = list(slots_of(gpus))
    return int(distances(graph)[np.ix_(slots, slots)].sum()) // 2


@lru_cache(maxsize=1 << 14)
def sockets_of(graph: HardwareGraph, gpus: int) -> tuple[int, ...]:
    """GPUs of a mask by CPU socket: one mask per socket with GPUs."""
    sockets = sorted({graph.groups[slot] for slot in slots_of(gpus)})
    masks = [mask_of(s for s, group in enumerate(graph.groups) if group == g) for g in sockets]
    return tuple(mask & gpus for mask in masks)


@dataclass(frozen=True, eq=False)
class Network:
    """The levels above the machine, tightest first; the last level holds all machines."""

    names: tuple[str, ...]
    group: tuple[IntArray, ...]
    """(N,) group number of each node per level; -1: in no group."""
    distance: tuple[int, ...]
    """Path length between machines with this tightest common level."""

    def path_sum(self, nodes: IntArray, gpus: IntArray) -> int:
        """Sum of path lengths over all pairs of these GPUs per (distinct) node, across nodes."""
        alone = int((gpus * gpus).sum())
        total, nearer = 0, 0
        for group, distance in zip(self.group, self.distance, strict=True):
            number = group[nodes]
            sums = np.bincount(number[number >= 0], weights=gpus[number >= 0])
            squares = int((sums * sums).sum()) + int((gpus[number < 0] ** 2).sum())
            pairs = (squares - alone) // 2  # pairs on different nodes of one group
            total += distance * (pairs - nearer)
            nearer = pairs
        return total


def network_of(cluster: Cluster) -> Network:
    """Levels above the node; one network of all nodes if the cluster has none."""
    n = cluster.shape[0]
    above = {
        level.name: level.group
        for level in cluster.levels
        if level.group.ndim == 1
        and level.name != "node"
        and len(np.unique(level.group[level.group >= 0])) < n
    }
    if not above or len(np.unique(list(above.values())[-1])) > 1:
        above["network"] = np.zeros(n, dtype=np.int64)
    steps = tuple(_NETWORK * (i + 1) for i in range(len(above)))
    return Network(tuple(above), tuple(above.values()), steps)


def with_known_sockets(cluster: Cluster) -> Cluster:
    """The cluster with graphs from its level below the node, if it has no graphs.

    A group (socket, NVLink domain) counts as a socket; a GPU in no group has one of its own.
    """
    inside = [level for level in cluster.levels if level.group.ndim == 2]
    if cluster.graphs or not inside:
        return cluster
    level = min(inside, key=lambda level: level.name != "socket")
    return replace(cluster, graphs=_graphs_from(level))


@lru_cache(maxsize=1)
def _graphs_from(level: LocalityLevel) -> tuple[HardwareGraph, ...]:
    """Graph of each node; cached by identity of the level, as a policy asks for each job."""
    group = level.group
    # Groups by their first slot, so that equal nodes have equal graphs.
    first = (group[:, :, None] == group[:, None, :]).argmax(axis=2)
    known = np.where(group >= 0, first, np.arange(group.shape[1]))
    return tuple(_graph_from(tuple(row)) for row in known.tolist())


@lru_cache(maxsize=256)
def _graph_from(groups: tuple[int, ...]) -> HardwareGraph:
    pairs = combinations(range(len(groups)), 2)
    links = [(a, b, "PHB" if groups[a] == groups[b] else "SYS", None) for a, b in pairs]
    return HardwareGraph.from_links(links, n=len(groups), groups=groups)
