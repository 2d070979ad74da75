"""Known machines as hardware graphs, described by rules.

Vendor machines follow the vendors' public documentation, with nvidia-smi's GPU numbers. The
``mapa-`` machines are those of the MAPA paper (Ranganath et al., SC'21, sections 4 and 5, fig. 17);
``mapa-torus-2d`` and ``mapa-cubemesh-16`` correct errors in the tables of the paper's code.

Paths through the host have no documented bandwidth. They count as `PCIE_GBPS` (PCIe gen3 x16, MAPA
table 1; the paper's code has 10), below every NVLink and xGMI link. In machines of PCIe
cards the steps of nvidia-smi's words scale with the generation.

Mappings of any communication graph onto GPUs: exact for small or narrow graphs.

The search places the job's GPUs one after the other. Two properties of a partial placement matter
for the rest: the GPUs it uses, and the GPUs of those job GPUs that have unplaced neighbours (the
frontier). Of all partial placements with both in common the search keeps the best one, so the work
grows with the width of the graph, not with the factorial of its size. Job GPUs with the same
neighbours are interchangeable and take GPUs in ascending order.

Graphs of up to eight job GPUs with a wider frontier are searched order by order: only the pairs of
positions that communicate decide the value of a mapping, and many of the k! orders of a set use the
same pairs (a cube: 840 of 40,320). Each is a row of zeros and ones over the pairs, so the sums of
all rows on all sets are one matrix product. The bottlenecks are a bisection with such products.

For other wide graphs the search keeps only the best few partial placements of each set of GPUs (a
beam). :func:`is_exact` says whether a search is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from itertools import combinations, permutations
from math import comb, perm
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.gpu_names import NVLINK_GBPS
from slurm_gpu_aware.model.hardware_graph import PCIE_GBPS, HardwareGraph, class_gbps, uniform_graph
from slurm_gpu_aware.model.profile import Link
from slurm_gpu_aware.topology.patterns import Edges
from slurm_gpu_aware.topology.subsets import (
    exact_type,
    masks_of_size,
    members_of_size,
    rank_of_mask,
)

_Pairs = Collection[tuple[int, int]]
_NVLINK = NVLINK_GBPS[4]


def _linked(
    n: int,
    per_socket: int,
    *linked: tuple[int, _Pairs],
    per_link: float = _NVLINK,
    kind: str = "NV",
) -> HardwareGraph:
    """Machine with these (direct links, pairs); all other pairs have a host path (``SYS``)."""
    links = {pair: Link(*pair, "SYS", PCIE_GBPS) for pair in combinations(range(n), 2)}
    for count, pairs in linked:
        for a, b in pairs:
            links[min(a, b), max(a, b)] = Link(a, b, f"{kind}{count}", count * per_link)
    return HardwareGraph.from_links(links.values(), n=n, groups=[i // per_socket for i in range(n)])


# NVIDIA's hybrid cube mesh: two fully connected quads, and GPU i to its twin i + 4.
_CUBE_MESH = [(a, b) for a, b in combinations(range(8), 2) if a // 4 == b // 4 or b == a + 4]
# The V100 machine doubles eight of them; they form one ring over all eight GPUs.
_CUBE_MESH_DOUBLE = [(0, 3), (2, 3), (1, 2), (1, 5), (5, 6), (6, 7), (4, 7), (0, 4)]


def _dgx1_p100() -> HardwareGraph:
    return _linked(8, 4, (1, _CUBE_MESH), per_link=NVLINK_GBPS[1])


def _dgx1_v100() -> HardwareGraph:
    return _linked(8, 4, (1, _CUBE_MESH), (2, _CUBE_MESH_DOUBLE))


def _switched(n: int, per_socket: int, links: int, per_link: float = _NVLINK) -> HardwareGraph:
    """NVSwitch crossbar: the bandwidth of an edge is one GPU's limit, shared by its peers."""
    return _linked(n, per_socket, (links, [*combinations(range(n), 2)]), per_link=per_link)


def _pcie(per_socket: int, gbps: float, per_switch: int = 1, bridge: int = 0) -> HardwareGraph:
    """Two sockets with GPUs on PCIe; ``gbps``: of one slot, in one direction.

    ``per_switch``: neighbours behind one PCIe switch; ``bridge``: NVLinks of a bridge over each two
    neighbours.
    """

    def link(a: int, b: int) -> Link:
        if bridge and a // 2 == b // 2:
            return Link(a, b, f"NV{bridge}", bridge * _NVLINK)
        near = "PIX" if a // per_switch == b // per_switch else "NODE"
        word = near if a // per_socket == b // per_socket else "SYS"
        return Link(a, b, word, class_gbps(word) * gbps / PCIE_GBPS)

    n = 2 * per_socket
    links = [link(*pair) for pair in combinations(range(n), 2)]
    return HardwareGraph.from_links(links, n=n, groups=[i // per_socket for i in range(n)])


def _power_node(per_socket: int, links: int, per_link: float = _NVLINK) -> HardwareGraph:
    """IBM Power: NVLinks join the GPUs of a socket, the host joins sockets."""
    n = 2 * per_socket
    pairs = [(a, b) for a, b in combinations(range(n), 2) if a // per_socket == b // per_socket]
    return _linked(n, per_socket, (links, pairs), per_link=per_link)


def _mi250x() -> HardwareGraph:
    """HPE Cray EX235a (Frontier, LUMI): four MI250X of two dies each, which count as GPUs.

    The links are the driver's ``xgmi_num_links`` on Frontier (ROCm/rocm-systems, issue 5763). Dies
    without a direct link communicate through the host: RCCL never forwards over a third one.
    """
    inside = [(0, 1), (2, 3), (4, 5), (6, 7)]
    single = [(0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)]
    pairs = (4, inside), (2, [(0, 6), (2, 4)]), (1, single)
    return _linked(8, 8, *pairs, per_link=50.0, kind="XGMI")


def _torus_2d() -> HardwareGraph:
    """4 x 4 torus, GPU 4r + c. Steps inside a row are double, except the wrap of every row
    (single); steps inside a column are single, except the wraps of columns 0 and 3 (double).
    """
    rows = [(4 * r + c, 4 * r + (c + 1) % 4) for r in range(4) for c in range(4)]
    columns = [(4 * r + c, (4 * r + 4) % 16 + c) for r in range(4) for c in range(4)]
    double = [(a, b) for a, b in rows if b > a] + [(12, 0), (15, 3)]
    return _linked(16, 4, (1, [*rows, *columns]), (2, double))


# Hypothetical cube mesh of 16 (fig. 17b), from the authors' tables. If these contradict each other,
# the class counts; the second 10-9 (single) is read as 10-11.
_MESH16_DOUBLE = [
    *[(0, 3), (1, 2), (6, 7), (4, 15), (7, 12), (8, 10), (9, 10), (12, 15), (14, 15)],
    *[(4, 5), (12, 13), (0, 11), (1, 5), (3, 8), (9, 13)],
]
_MESH16_SINGLE = [
    *[(0, 1), (0, 2), (1, 3), (2, 6), (2, 9), (4, 6), (4, 7), (5, 6), (5, 7), (6, 13), (8, 9)],
    *[(8, 11), (9, 11), (10, 11), (10, 14), (12, 14), (13, 14), (13, 15)],
]

_MACHINES: Mapping[str, Callable[[], HardwareGraph]] = {
    "dgx-1-p100": _dgx1_p100,
    "dgx-1-v100": _dgx1_v100,
    "dgx-2": lambda: _switched(16, 8, 6),
    "dgx-a100": lambda: _switched(8, 4, 12),
    "dgx-h100": lambda: _switched(8, 4, 18),
    "dgx-h200": lambda: _switched(8, 4, 18),
    # NVLink 5 (NVIDIA, DGX B200 and B300 User Guides): 18 links, 1.8 TB/s of a GPU both ways.
    "dgx-b200": lambda: _switched(8, 4, 18, NVLINK_GBPS[5]),
    "dgx-b300": lambda: _switched(8, 4, 18, NVLINK_GBPS[5]),
    # A Slurm node is one compute tray of the rack: 2 Grace CPUs, 4 GPUs (NVIDIA, DGX GB Rack Scale
    # Systems User Guide, hardware).
    "gb200-nvl72": lambda: _switched(4, 2, 18, NVLINK_GBPS[5]),
    "gb300-nvl72": lambda: _switched(4, 2, 18, NVLINK_GBPS[5]),
    "hgx-a100-4": lambda: uniform_graph(4, "NV4", 100.0),
    # Bridges of 600 GB/s both ways over pairs (NVIDIA, H100 NVL product brief).
    "h100-nvl-8": lambda: _pcie(4, 63.0, bridge=12),
    "hpe-ex235a-mi250x": _mi250x,
    "ibm-ac922-4xv100": lambda: _power_node(2, 3),
    "ibm-ac922-6xv100": lambda: _power_node(3, 2),
    "ibm-minsky-4xp100": lambda: _power_node(2, 2, NVLINK_GBPS[1]),
    "mapa-dgx-p": _dgx1_p100,
    "mapa-dgx-v": _dgx1_v100,
    "mapa-summit": lambda: _power_node(3, 2),
    "mapa-torus-2d": _torus_2d,
    "mapa-cubemesh-16": lambda: _linked(16, 4, (1, _MESH16_SINGLE), (2, _MESH16_DOUBLE)),
    "pcie-gen4-4": lambda: _pcie(2, 31.5),
    "pcie-gen4-8": lambda: _pcie(4, 31.5),
    "pcie-gen5-8": lambda: _pcie(4, 63.0),
    # Two GPUs on the PCIe switch of each of four ConnectX-8 (NVIDIA, "ConnectX-8 SuperNICs Advance
    # AI Platform Architecture with PCIe Gen6 Connectivity"); the GPUs have PCIe gen5 x16.
    "rtx-pro-8": lambda: _pcie(4, 63.0, per_switch=2),
    # One xGMI link of 16 lanes of 32 GT/s between every two GPUs, so 64 GB/s.
    "mi300x-8": lambda: _linked(
        8, 4, (1, [*combinations(range(8), 2)]), per_link=64.0, kind="XGMI"
    ),
}


def machine_names() -> tuple[str, ...]:
    """Names that :func:`machine` knows, sorted."""
    return tuple(sorted(_MACHINES))


def machine(name: str) -> HardwareGraph:
    """Hardware graph of a known machine; the name is not case-sensitive.

    Raises ValueError for an unknown name; the message lists the known names.
    """
    build = _MACHINES.get(name.lower())
    if build is None:
        raise ValueError(f"unknown machine {name!r}; known: {', '.join(machine_names())}")
    return build()


_MOST_ROWS = 1 << 22  # partial placements of all steps: 1 s to 2 s
_MOST_ORDERED = 8  # job GPUs of a search order by order
_MOST_PRODUCTS = 1 << 34  # multiplications of one product over orders: about the same time
_AT_ONCE = 1 << 21  # entries of one such product
_BEAM = 1 << 15  # partial placements that a step of a beam search keeps


class _Step(NamedTuple):
    """Placement of one job GPU."""

    vertex: int
    neighbours: list[int]  # columns of the frontier that communicate with the new GPU
    after: int | None  # column of the interchangeable predecessor, which takes a lower GPU
    keep: list[int]  # columns of (old frontier, new GPU) that form the next frontier


@lru_cache(maxsize=128)
def _steps(edges: Edges, k: int) -> tuple[_Step, ...]:
    """Order of placement: the next job GPU is the one that leaves the smallest frontier."""
    near = [{a + b - v for a, b in edges if v in (a, b)} for v in range(k)]
    pairs = combinations(range(k), 2)
    twin_of = {v: u for u, v in pairs if near[u] - {v} == near[v] - {u}}
    next_twin = {u: v for v, u in twin_of.items()}
    frontier: list[int] = []
    left = set(range(k))
    steps: list[_Step] = []

    def remains(candidate: int) -> list[int]:
        """Frontier after the placement: job GPUs with an unplaced neighbour or next twin."""
        rest = left - {candidate}
        return [v for v in [*frontier, candidate] if near[v] & rest or next_twin.get(v) in rest]

    for _ in range(k):
        ready = [v for v in sorted(left) if twin_of.get(v) not in left]
        vertex = min(ready, key=lambda v: (len(remains(v)), -len(near[v] - left), v))
        columns, after, following = [*frontier, vertex], twin_of.get(vertex), remains(vertex)
        neighbours = [i for i, v in enumerate(frontier) if v in near[vertex]]
        column = None if after is None else frontier.index(after)
        keep = [columns.index(v) for v in following]
        steps.append(_Step(vertex, neighbours, column, keep))
        left.discard(vertex)
        frontier = following
    return tuple(steps)


class _Layer(NamedTuple):
    """Best partial placements: distinct (mask, frontier) states."""

    mask: IntArray
    seats: IntArray  # (S, width) GPUs of the frontier
    value: FloatArray
    parent: IntArray  # state before the last step
    gpu: IntArray  # GPU of the last step


def _extend(layer: _Layer, step: _Step, weights: FloatArray, total: bool, beam: bool) -> _Layer:
    gpus = np.arange(weights.shape[0])
    allowed = (layer.mask[:, None] >> gpus & 1) == 0
    if step.after is not None:
        allowed &= gpus > layer.seats[:, step.after, None]
    parent, gpu = np.nonzero(allowed)
    value = layer.value[parent]
    for column in step.neighbours:
        link = weights[layer.seats[parent, column], gpu]
        value = value + link if total else np.minimum(value, link)
    mask = layer.mask[parent] | (1 << gpu)
    seats = np.column_stack([layer.seats[parent], gpu])[:, step.keep]
    # One number per state. Masks are numbered, so that 64 bits hold a frontier of any width.
    state = (np.cumsum(np.bincount(mask) > 0) - 1)[mask].astype(np.uint64)
    for column in seats.T.astype(np.uint64):
        state = state << np.uint64(4) | column
    # Best value first within a state; ties keep the order of creation (lowest GPUs first).
    order = np.lexsort((-value, state))
    first = order[np.flatnonzero(np.diff(state[order], prepend=state[order[:1]] + np.uint64(1)))]
    if beam and len(first) > _BEAM:
        first = _best_of_each(first, mask[first], value[first])
    return _Layer(mask[first], seats[first], value[first], parent[first], gpu[first])


def _best_of_each(states: IntArray, mask: IntArray, value: FloatArray) -> IntArray:
    """The best few states of every set of GPUs; every set keeps at least one."""
    order = np.lexsort((-value, mask))
    new = np.concatenate([[True], mask[order][1:] != mask[order][:-1]])
    starts = np.flatnonzero(new)
    place = np.arange(len(order)) - starts[np.cumsum(new) - 1]
    return np.asarray(states[order[place < max(1, _BEAM // len(starts))]])


@lru_cache(maxsize=512)
def _way(edges: Edges, k: int, n: int) -> Literal["frontier", "orders", "beam"]:
    """Search for a graph on ``k`` of ``n`` GPUs: exact if that takes about a second."""
    rows = sum(
        comb(n, i) * perm(i, len(step.keep)) * max(1, n - i)
        for i, step in enumerate(_steps(edges, k), start=1)
    )
    if rows <= _MOST_ROWS:
        return "frontier"
    if k <= _MOST_ORDERED and _orders(edges, k).size * comb(n, k) <= _MOST_PRODUCTS:
        return "orders"
    return "beam"


def is_exact(edges: Edges, k: int, n: int) -> bool:
    """Say whether :func:`mapping_values` compares all mappings onto ``k`` of ``n`` GPUs."""
    return _way(edges, k, n) != "beam"


def _layers(weights: FloatArray, edges: Edges, k: int, total: bool) -> list[_Layer]:
    none = np.zeros(1, dtype=np.int64)
    start = np.zeros(1) if total else np.full(1, np.inf)
    layers = [_Layer(none, np.zeros((1, 0), dtype=np.int64), start, none, none)]
    beam = _way(edges, k, weights.shape[0]) != "frontier"
    for step in _steps(edges, k):
        layers.append(_extend(layers[-1], step, weights, total, beam))
    return layers


def mapping_values(weights: FloatArray, edges: Edges, k: int) -> tuple[FloatArray, FloatArray]:
    """(C(n, k),) largest sums and bottlenecks of a mapping onto every ``k``-set, in tie order.

    ``weights``: (n, n) GB/s, symmetric, n <= 16. ``edges``: pairs of job GPUs 0..k-1, each once;
    without edges 0 and inf.

    Exact if :func:`is_exact`; otherwise the values belong to mappings that may not be the best.
    Step i has at most C(n, i) x i!/(i-width)! partial placements: fast for paths, rings, trees,
    ladders and, because of interchangeable GPUs, for stars and complete (bipartite) graphs. Wide
    graphs (cubes, tori, irregular ones) take 1 s to 2 s, once per machine.
    """
    n = weights.shape[0]
    if _way(edges, k, n) == "orders":
        return order_values(weights, edges, k)
    values = []
    for total in (True, False):
        last = _layers(weights, edges, k, total)[-1]
        out = np.full(masks_of_size(n, k).size, -np.inf)
        out[rank_of_mask(n, k)[last.mask]] = last.value
        values.append(out)
    return values[0], values[1]


def best_mapping(weights: FloatArray, edges: Edges) -> tuple[int, ...]:
    """GPU of each job GPU in the mapping with the largest sum onto all ``n`` GPUs.

    Links of weight ``-inf`` are used only if the search finds no mapping without them.
    """
    n = weights.shape[0]
    layers = _layers(weights, edges, n, total=True)
    seat, state = [0] * n, 0
    for layer, step in zip(reversed(layers[1:]), reversed(_steps(edges, n)), strict=True):
        seat[step.vertex] = int(layer.gpu[state])
        state = int(layer.parent[state])
    return tuple(seat)


@lru_cache(maxsize=32)
def _orders(edges: Edges, k: int) -> npt.NDArray[np.float32]:
    """(M, k(k-1)/2) distinct sets of pairs that the graph's edges use over all orders of ``k``."""
    pair_of = np.zeros((k, k), dtype=np.int64)
    for number, (a, b) in enumerate(combinations(range(k), 2)):
        pair_of[a, b] = pair_of[b, a] = number
    order = np.array(list(permutations(range(k))), dtype=np.int64)
    used = np.zeros(len(order), dtype=np.int64)
    for a, b in edges:
        used |= 1 << pair_of[order[:, a], order[:, b]]
    distinct = np.unique(used)
    return ((distinct[:, None] >> np.arange(k * (k - 1) // 2)) & 1).astype(np.float32)


def order_values(weights: FloatArray, edges: Edges, k: int) -> tuple[FloatArray, FloatArray]:
    """As :func:`mapping_values`, order by order: exact, with at least one edge."""
    members, used = members_of_size(weights.shape[0], k), _orders(edges, k)
    first, second = np.triu_indices(k, 1)
    links = weights[members[first], members[second]]
    kind = exact_type(weights, len(edges))
    step = max(1, _AT_ONCE // len(used))

    def best(rows: npt.NDArray[np.floating]) -> FloatArray:
        """The largest sum of an order on every set, for (pairs, sets) values."""
        wide = used.astype(rows.dtype, copy=False)
        parts = range(0, rows.shape[1], step)
        return np.concatenate([(wide @ rows[:, at : at + step]).max(axis=0) for at in parts])

    # The bottleneck is the largest value such that some order uses only links as large or larger.
    values = np.unique(links)
    low = np.zeros(links.shape[1], dtype=np.int64)  # feasible: no link is below the least value
    high = np.full(links.shape[1], len(values))
    while (open_ := np.flatnonzero(high - low > 1)).size:
        middle = (low[open_] + high[open_]) // 2
        feasible = best((links[:, open_] >= values[middle]).astype(np.float32)) >= len(edges)
        low[open_] = np.where(feasible, middle, low[open_])
        high[open_] = np.where(feasible, high[open_], middle)
    return best(links.astype(kind)).astype(np.float64), values[low]
