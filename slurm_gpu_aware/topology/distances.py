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

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, nvlinks
from slurm_gpu_aware.topology.subsets import slots_of

__all__ = [
    "ACROSS_SOCKETS",
    "LINKED",
    "NETWORK",
    "SAME_SOCKET",
    "Network",
    "distances",
    "network_of",
    "path_sum",
    "sockets_of",
    "with_known_sockets",
]

LINKED = 1
SAME_SOCKET = 10
ACROSS_SOCKETS = 20
NETWORK = 100
_DISTANCE = {
    "PIX": LINKED,
    "PXB": LINKED,
    "PHB": SAME_SOCKET,
    "NODE": SAME_SOCKET,
    "SYS": ACROSS_SOCKETS,
}


@lru_cache(maxsize=1024)
def distances(graph: HardwareGraph) -> IntArray:
    """(n, n) shortest path lengths between the GPUs of a machine. Read-only."""
    found = np.zeros((graph.n, graph.n), dtype=np.int64)
    for a in range(graph.n):
        for b in range(graph.n):
            if a != b:
                word = graph.classes[a][b]
                found[a, b] = LINKED if nvlinks(word) else _DISTANCE[word]
    found.setflags(write=False)
    return found


@lru_cache(maxsize=1 << 16)
def path_sum(graph: HardwareGraph, gpus: int) -> int:
    """t (eq. 3): sum of path lengths over all pairs of the GPUs of a mask.

    Examples
    --------
    >>> from slurm_gpu_aware.topology.machines import machine
    >>> minsky = machine("ibm-minsky-4xp100")  # two sockets with two linked GPUs each
    >>> path_sum(minsky, 0b0011), path_sum(minsky, 0b0101), path_sum(minsky, 0b1111)
    (1, 20, 82)
    """
    slots = list(slots_of(gpus))
    return int(distances(graph)[np.ix_(slots, slots)].sum()) // 2


@lru_cache(maxsize=1 << 14)
def sockets_of(graph: HardwareGraph, gpus: int) -> tuple[int, ...]:
    """GPUs of a mask by CPU socket: one mask per socket with GPUs."""
    by_socket: dict[int, int] = {}
    for slot in slots_of(gpus):
        socket = graph.groups[slot]
        by_socket[socket] = by_socket.get(socket, 0) | 1 << slot
    return tuple(by_socket[socket] for socket in sorted(by_socket))


@dataclass(frozen=True, eq=False)
class Network:
    """The levels above the machine, tightest first; the last level holds all machines."""

    names: tuple[str, ...]
    group: tuple[IntArray, ...]
    """(N,) group number of each node per level; -1: in no group."""
    distance: tuple[int, ...]
    """Path length between machines with this tightest common level."""

    def path_sum(self, nodes: IntArray, gpus: IntArray) -> int:
        """Sum of path lengths over all pairs of GPUs on different nodes.

        ``nodes``: distinct node indices. ``gpus``: GPUs on each of them.
        """
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
    names, groups = [], []
    for level in cluster.levels:
        group = np.asarray(level.group)
        known = group[group >= 0] if group.ndim == 1 else group
        if group.ndim == 1 and len(np.unique(known)) < n and level.name != "node":
            names.append(level.name)
            groups.append(group)
    if not groups or (n and not bool((groups[-1] == groups[-1][0]).all())):
        names.append("network")
        groups.append(np.zeros(n, dtype=np.int64))
    steps = tuple(NETWORK * (i + 1) for i in range(len(names)))
    return Network(tuple(names), tuple(groups), steps)


def with_known_sockets(cluster: Cluster) -> Cluster:
    """The cluster with graphs from its level below the node, if it has no graphs.

    A group (socket, NVLink domain) counts as a socket.
    """
    if cluster.graphs:
        return cluster
    inside = [level for level in cluster.levels if level.group.ndim == 2]
    inside.sort(key=lambda level: level.name != "socket")
    return replace(cluster, graphs=_graphs_from(inside[0])) if inside else cluster


_last: tuple[LocalityLevel, tuple[HardwareGraph, ...]] | None = None


def _graphs_from(level: LocalityLevel) -> tuple[HardwareGraph, ...]:
    """Cached by identity of the level, so that caches keyed by the graphs stay valid."""
    global _last
    if _last is None or _last[0] is not level:
        _last = level, _graph_of_each(level)
    return _last[1]


def _graph_of_each(level: LocalityLevel) -> tuple[HardwareGraph, ...]:
    rows, inverse = np.unique(_dense(level.group), axis=0, return_inverse=True)
    graphs = [_graph_from(tuple(int(g) for g in row)) for row in rows]
    return tuple(graphs[i] for i in inverse.reshape(-1))


def _dense(group: IntArray) -> IntArray:
    """Group numbers by first occurrence in their row, so that equal machines have equal rows."""
    first = (group[:, :, None] == group[:, None, :]).argmax(axis=2)
    return np.where(group >= 0, first, np.arange(group.shape[1])).astype(np.int64)


@lru_cache(maxsize=256)
def _graph_from(groups: tuple[int, ...]) -> HardwareGraph:
    words = [["PHB" if a == b else "SYS" for b in groups] for a in groups]
    return HardwareGraph.from_classes(words, groups)
