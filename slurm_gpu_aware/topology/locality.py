"""Locality levels of a cluster: from penalties, sockets, links and the network's groups.

From tight to loose: NVLink domain, socket, node, network levels, cluster. A level is used if it has
a penalty; a network level also needs groups. A GPU without known links or socket is a separate
domain, so that placement of one-GPU jobs neither prefers nor avoids it.

``nvlink``: GPUs with an NVLink or xGMI link between every pair; other GPUs that these connect (a
DGX-1) are divided by socket. ``socket``: GPUs of one NUMA node or, if that is not known, with a
path of PIX, PXB, PHB or NODE.

Distances in the physical graph, by the level that a path crosses (Amaral et al., SC'17, eq. 3).

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, direct_links
from slurm_gpu_aware.model.penalties import LevelPenalties, Penalty
from slurm_gpu_aware.topology.subsets import mask_of, slots_of

_SAME_SOCKET = ("PIX", "PXB", "PHB", "NODE")  # nvidia-smi's words for paths on one socket
_LINKED, _NETWORK = 1, 100
_DISTANCE = {"X": 0, "PHB": 10, "NODE": 10, "SYS": 20}


def build_levels(
    penalties: Mapping[str, float] | LevelPenalties,
    nodes: Sequence[str],
    slots: int,
    *,
    numa: IntArray | None = None,
    graphs: Sequence[HardwareGraph | None] = (),
    network: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[LocalityLevel, ...]:
    """Return the levels of a cluster, tightest first.

    ``penalties``: L >= 1 per level, tightest first, with ``node`` and ``cluster``. ``nodes``: names
    of the N nodes; each has at most ``slots`` GPUs (W). ``numa``: (N, W) NUMA node of each GPU, -1:
    not known; None: none is known. ``graphs``: link graph per node; empty: no link is known.
    ``network``: level name -> node -> group. An absent level is not used; a node without a group
    has only the looser levels. None: no network is known.

    Examples
    --------
    >>> racks = {"rack": {"a": "r1", "b": "r1", "c": "r2"}}
    >>> levels = build_levels({"node": 1, "rack": 1.2, "cluster": 1.5}, "abc", 4, network=racks)
    >>> [(level.name, level.penalty, level.group.tolist()) for level in levels]
    [('node', 1, [0, 1, 2]), ('rack', 1.2, [0, 0, 1]), ('cluster', 1.5, [0, 0, 0])]
    """
    n, groups = len(nodes), network or {}
    if not isinstance(penalties, LevelPenalties):
        penalties = LevelPenalties({name: Penalty(value) for name, value in penalties.items()})
    levels = []
    for name, (penalty, source) in penalties.general.items():
        if name in ("nvlink", "socket"):
            group = _inside(name, n, slots, numa, graphs)
        elif name == "node":
            group = np.arange(n, dtype=np.int64)
        elif name == "cluster":
            group = np.zeros(n, dtype=np.int64)
        elif name in groups:
            group = _numbered(groups[name], nodes)
        else:
            continue
        own = {app_class: row[name] for app_class, row in penalties.by_class.items()}
        levels.append(LocalityLevel(name, penalty, group, source, own))
    return tuple(levels)


def with_levels(cluster: Cluster, penalties: Mapping[str, float] | LevelPenalties) -> Cluster:
    """The cluster with the levels of its link graphs, without network levels."""
    numa = np.full(cluster.shape, -1, dtype=np.int64)
    for row, graph in enumerate(cluster.graphs):
        if graph is not None:
            numa[row, : graph.n] = graph.groups
    levels = build_levels(
        penalties, cluster.nodes, cluster.shape[1], numa=numa, graphs=cluster.graphs
    )
    return replace(cluster, levels=levels)


def _numbered(group_of: Mapping[str, str], nodes: Sequence[str]) -> IntArray:
    """(N,) group numbers by first occurrence; -1: the node is in no group."""
    numbers: dict[str, int] = {}
    names = [group_of.get(node) for node in nodes]
    found = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(found, dtype=np.int64)


def _inside(
    level: str, n: int, slots: int, numa: IntArray | None, graphs: Sequence[HardwareGraph | None]
) -> IntArray:
    """(N, W) domain of each GPU, as the lowest slot of the domain."""
    rows = numa.tolist() if numa is not None else [[-1] * slots] * n
    pairs = zip(graphs or [None] * n, rows, strict=True)
    found = [_domains(level, graph, tuple(row)) for graph, row in pairs]
    return np.array(found, dtype=np.int64).reshape(n, slots)


@lru_cache(maxsize=4096)
def _domains(level: str, graph: HardwareGraph | None, numa: tuple[int, ...]) -> tuple[int, ...]:
    """Domain of each slot of one machine."""
    n = len(numa)
    linked = np.zeros((n, n), dtype=np.bool_)
    near = np.array([[a == b and a >= 0 for b in numa] for a in numa], dtype=np.bool_)
    if graph is not None:
        for a, b in permutations(range(min(n, graph.n)), 2):
            word = graph.classes[a][b]
            linked[a, b] = direct_links(word) > 0
            near[a, b] |= word in _SAME_SOCKET and min(numa[a], numa[b]) < 0
    sockets = _components(near)
    if level == "socket":
        return tuple(sockets)
    found = list(range(n))
    whole = _components(linked)
    for labels in (whole, list(zip(whole, sockets, strict=True))):
        for a in range(n):
            part = [b for b in range(n) if labels[b] == labels[a]]
            if all(linked[pair] for pair in combinations(part, 2)):
                found[a] = min(found[a], part[0])
    return tuple(found)


def _components(joined: BoolArray) -> list[int]:
    """Lowest member of each slot's connected component."""
    reach = joined | np.eye(len(joined), dtype=np.bool_)
    for _ in range(len(joined).bit_length()):
        reach = reach @ reach
    return [row.index(True) for row in reach.tolist()]


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
    group: tuple[IntArray, ...]  # (N,) group number of each node per level; -1: in no group.
    distance: tuple[int, ...]  # Path length between machines with this tightest common level.

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
