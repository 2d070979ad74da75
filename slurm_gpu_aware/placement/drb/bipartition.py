"""Dynamic recursive bipartition of a machine (Amaral et al., SC'17, algorithms 2 and 3).

Fiduccia-Mattheyses splits the physical graph in two, the halves get the job's tasks by utility, and
each half is split in turn, down to single GPUs. The tasks of a job are equal, so only their number
in each half matters: all counts are compared by the utility of the resulting set. (Task by task, as
printed, the tasks of a pair may go to two sockets even if an idle socket has room for both. In the
text of algorithm 3, "if P1 gives better utility ... added to A0", A0 is a misprint of A1.)

C. M. Fiduccia, R. M. Mattheyses, "A linear-time heuristic for improving network partitions",
DAC 1982. In a pass each vertex moves once, in the order of the largest gain that keeps the balance,
and the best prefix of the moves is kept. Passes repeat until one has no gain.

Recursive bipartition of a node, same socket first (Topo-aware in MAPA's comparison).

The GPUs of a node are halved by sockets, then inside a socket along the least cut of link
bandwidth. A job goes to a half that holds it, to the fuller one if both do. Otherwise it fills the
half with more free GPUs and takes the rest from the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.drb.utility import (
    Neighbours,
    Scale,
    Weights,
    free_shares,
    interference,
)
from slurm_gpu_aware.placement.selection.base import Choice, left_beside
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.selection.links import kinds_of
from slurm_gpu_aware.topology.bandwidth import preserved_bw
from slurm_gpu_aware.topology.locality import distances, path_sum, sockets_of
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of, masks_of_size, slots_of

_STARTS = 8
_EPS = 1e-9


@dataclass(frozen=True)
class Machine:
    """One machine for a job; GPUs are masks. Equal machines are equal values."""

    graph: HardwareGraph
    exists: int
    free: int
    allowed: int  # Free GPUs that the job may have.
    neighbours: tuple[Neighbours, ...] = ()

    def terms(self, chosen: int) -> tuple[int, float, float]:
        """t (eq. 3), I (eq. 4) and w (eq. 5) of a set."""
        shares, sockets = free_shares(self.graph, self.exists, self.free, chosen)
        i = interference(self.neighbours, chosen)
        return path_sum(self.graph, chosen), i, shares / max(sockets, 1)


def machine_cost(machine: Machine, chosen: int, weights: Weights, scale: Scale) -> float:
    """Cost of sets of equal size: eq. 1 with t from 0 for parts of a job."""
    t, i, w = machine.terms(chosen)
    return float(scale.cost(weights, float(t + scale.t_best), i, w))


@lru_cache(maxsize=4096)
def halves(graph: HardwareGraph, gpus: int) -> tuple[int, int]:
    """Split the GPUs of a mask in two; the half with the lowest GPU first.

    An edge weighs 1 / distance. The least cut relative to the product of the sizes wins (ratio
    cut), because sockets may differ in size; then the more even cut.
    """
    slots = list(slots_of(gpus))
    length = distances(graph)[np.ix_(slots, slots)].astype(np.float64)
    near = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    n = len(slots)
    off_diagonal = near[~np.eye(n, dtype=np.bool_)]
    uniform = off_diagonal.min() == off_diagonal.max()  # every cut of a size is equal

    def ratio(side: BoolArray) -> float:
        size = int(side.sum())
        return round(cut_weight(near, side) / (size * (n - size)), 12)

    counts = sorted(range(1, n), key=lambda s: (abs(n - 2 * s), s))
    sides = [np.arange(n) < s if uniform else fm_bipartition(near, s) for s in counts]
    best = mask_of(np.array(slots)[min(sides, key=ratio)].tolist())
    return best, gpus ^ best


def cut_weight(weights: FloatArray, side: BoolArray) -> float:
    """Sum of the weights of edges between the two sides."""
    return float(weights[np.ix_(side, ~side)].sum())


def fm_bipartition(weights: FloatArray, size: int) -> BoolArray:
    """Split the vertices in two by a small cut.

    ``weights``: (n, n) symmetric, >= 0, zero diagonal; cost of cutting each edge. ``size``: number
    of vertices on the side of vertex 0, within 1..n-1. Returns (n,) True for the side of vertex 0:
    a local optimum, the best of up to 8 starts (runs of vertices and greedily grown sides). A pass
    costs O(n^2): on dense graphs one array of gains replaces FM's buckets.
    """
    best, least = np.zeros(len(weights), dtype=np.bool_), np.inf
    for start in _starts(weights, size):
        side = fm_improve(weights, start)
        cut = cut_weight(weights, side)
        if cut < least - _EPS:
            best, least = side, cut
    return best


def fm_improve(weights: FloatArray, side: BoolArray) -> BoolArray:
    """Repeat passes from the start ``side`` until none reduces the cut. Vertex 0 does not move."""
    side = side.copy()
    while moves := _one_pass(weights, side):
        side[moves] = ~side[moves]
    return side


def _one_pass(weights: FloatArray, start: BoolArray) -> list[int]:
    """The best prefix of one pass; empty if none has a gain."""
    side = start.copy()
    across = side[:, None] != side[None, :]
    gains = np.where(across, weights, -weights).sum(axis=1)
    locked = np.arange(len(side)) == 0  # the sides are equal, so a fixed vertex loses no partition
    # The balance may be off by one vertex, as in FM; otherwise a bisection would allow no move.
    surplus, total, best, kept = 0, 0.0, 0.0, 0
    moves: list[int] = []
    while True:
        candidates = ~locked & (side if surplus > 0 else ~side if surplus < 0 else True)
        if not candidates.any():
            return moves[:kept]
        vertex = int(np.where(candidates, gains, -np.inf).argmax())
        total += float(gains[vertex])
        surplus += -1 if side[vertex] else 1
        locked[vertex] = True
        gains += np.where(side == side[vertex], 2 * weights[vertex], -2 * weights[vertex])
        gains[vertex] = -gains[vertex]
        side[vertex] = ~side[vertex]
        moves.append(vertex)
        if surplus == 0 and total > best + _EPS:
            best, kept = total, len(moves)


def _starts(weights: FloatArray, size: int) -> Iterator[BoolArray]:
    """Start partitions with ``size`` vertices on the side of vertex 0."""
    n = len(weights)
    for step in range(1, min(n, _STARTS // 2) + 1):
        in_steps = [v for offset in range(step) for v in range(offset, n, step)]
        yield np.isin(np.arange(n), in_steps[:size])
    for seed in range(0, n, max(1, 2 * n // _STARTS))[: _STARTS // 2]:
        yield np.isin(np.arange(n), _grown(weights, seed, size))


def _grown(weights: FloatArray, seed: int, size: int) -> list[int]:
    """``size`` vertices grown from 0 or, for another seed, the complement of those grown there."""
    n = len(weights)
    wanted = size if seed == 0 else n - size
    inside = [seed]
    pull = weights[seed].copy()
    pull[[0, seed]] = -np.inf
    while len(inside) < wanted:
        vertex = int(pull.argmax())
        inside.append(vertex)
        pull += weights[vertex]
        pull[vertex] = -np.inf
    return inside if seed == 0 else [v for v in range(n) if v not in inside]


@lru_cache(maxsize=1 << 10)
def narrow_pairs(graph: HardwareGraph, gbps: float) -> tuple[int, ...]:
    """Pairs of GPUs, as masks, with a link of less than ``gbps`` (GB/s)."""
    first, second = np.nonzero(np.triu(graph.gbps[:63, :63] < gbps, 1))  # signed masks
    return tuple(1 << a | 1 << b for a, b in zip(first.tolist(), second.tolist(), strict=True))


@lru_cache(maxsize=1 << 14)
def linked_enough(graph: HardwareGraph, gpus: int, gbps: float) -> bool:
    """Say whether every pair of the GPUs has a link of at least ``gbps`` (GB/s)."""
    slots = list(slots_of(gpus))
    links = graph.gbps[np.ix_(slots, slots)]
    return bool((links[~np.eye(len(slots), dtype=np.bool_)] >= gbps).all())


@lru_cache(maxsize=1 << 14)
def best_set(
    machine: Machine, k: int, weights: Weights, scale: Scale, min_gbps: float = 0.0
) -> int | None:
    """Mask of the ``k`` GPUs that recursive bipartition gives a job; None if there are none.

    ``min_gbps``: least link of every pair, GB/s. If bipartition finds no such set on a machine of
    up to 16 GPUs, all sets are tried.

    A heuristic, because the best choice inside each half may not be the best for the whole. It is
    exact if all GPUs of one half have the same distance to the other half, on every level, and
    sockets have two GPUs. On ties the lowest slots win.
    """
    if machine.allowed.bit_count() < k:
        return None

    def linked(mask: int) -> bool:
        return min_gbps <= 0.0 or linked_enough(machine.graph, mask, min_gbps)

    def order(mask: int) -> tuple[float, tuple[int, ...]]:
        return machine_cost(machine, mask, weights, scale), slots_of(mask)

    @cache
    def best(region: int, count: int) -> int | None:
        """Best ``count`` GPUs of a region; None if there are none."""
        there = machine.allowed & region
        if count == 0 or there.bit_count() < count:
            return None if count else 0
        if there.bit_count() == count:
            return there if linked(there) else None
        first, second = halves(machine.graph, region)
        pairs = [(best(first, count - inside), best(second, inside)) for inside in range(count + 1)]
        sets = [a | b for a, b in pairs if a is not None and b is not None]
        return min(filter(linked, sets), key=order, default=None)

    found = best(machine.exists, k)
    if found is not None or min_gbps <= 0.0 or machine.graph.n > MAX_EXACT:
        return found
    fine = filter(linked, _all_sets(machine, k))
    return min(fine, key=lambda m: machine_cost(machine, m, weights, scale), default=None)


@lru_cache(maxsize=1 << 12)
def worst_set(machine: Machine, k: int, weights: Weights, scale: Scale) -> int:
    """The costliest ``k`` allowed GPUs, for plain nodes; above 16 slots the lowest ``k``."""
    if machine.graph.n > MAX_EXACT:
        return mask_of(slots_of(machine.allowed)[:k])
    masks = _all_sets(machine, k)
    return max(masks, default=0, key=lambda m: machine_cost(machine, m, weights, scale))


def _all_sets(machine: Machine, k: int) -> list[int]:
    masks = masks_of_size(machine.graph.n, k)
    allowed: list[int] = masks[masks & ~machine.allowed == 0].tolist()
    return allowed


@lru_cache(maxsize=4096)
def bisect(graph: HardwareGraph, gpus: int) -> tuple[int, int]:
    """Split GPUs (a mask) in two: by socket if they lie on several, else by the least cut.

    Of equal cuts the one with the lowest indices together wins. Returns masks, the one with the
    lowest GPU first.
    """
    slots, sockets = slots_of(gpus), sockets_of(graph, gpus)
    if len(sockets) > 1:
        first = sum(sockets[: (len(sockets) + 1) // 2])
        return (first, gpus ^ first) if first & (gpus & -gpus) else (gpus ^ first, first)
    half = (len(slots) + 1) // 2
    if len(slots) > MAX_EXACT:
        first = mask_of(slots[:half])
        return first, gpus ^ first
    part = graph.subgraph(slots)
    masks = masks_of_size(part.n, half)
    masks = masks[masks & 1 == 1]
    full = (1 << part.n) - 1
    inside = preserved_bw(part, full, masks) + preserved_bw(part, full, full ^ masks)
    first = mask_of([slots[i] for i in slots_of(int(masks[int(np.argmax(inside))]))])
    return first, gpus ^ first


@lru_cache(maxsize=1 << 14)
def socket_first(graph: HardwareGraph, node: int, allowed: int, k: int) -> int:
    """Mask of ``k`` allowed GPUs by recursive bipartition of the GPUs in ``node`` (a mask)."""
    if k == 0 or allowed.bit_count() == k:
        return allowed if k else 0
    first, second = bisect(graph, node)
    free = (allowed & first).bit_count(), (allowed & second).bit_count()
    fitting = [(count, i) for i, count in enumerate(free) if count >= k]
    if fitting:
        half = (first, second)[min(fitting)[1]]
        return socket_first(graph, half, allowed & half, k)
    more, less = (first, second) if free[0] >= free[1] else (second, first)
    rest = k - (allowed & more).bit_count()
    return (allowed & more) | socket_first(graph, less, allowed & less, rest)


def choose_by_sockets(cell: Cell) -> Choice:
    """The node where the job spans the fewest sockets, then best fit, then the lowest index.

    A plain node counts with the most sockets. For several or whole nodes best fit decides.
    """
    if cell.split.nodes != 1 or cell.supply.request.nodes.whole:
        return ByScores().choose(cell)
    kinds, k = kinds_of(cell), cell.split.per_node
    masks = [
        mask_of(slots_of(allowed)[:k])
        if plain
        else socket_first(graph, (1 << graph.n) - 1, allowed, k)
        for graph, _, allowed, plain in kinds.each
    ]
    spanned = [
        min(k, len(sockets_of(kind.graph, kind.allowed if kind.plain else mask)))
        for kind, mask in zip(kinds.each, masks, strict=True)
    ]
    sockets = np.array(spanned, dtype=np.int64)[kinds.of_row]
    rows = np.flatnonzero(sockets == sockets.min())
    left = left_beside(cell)[rows]
    rows = rows[left == left.min()]
    row = rows[np.argmin(cell.units[rows])]
    slots = slots_of(masks[kinds.of_row[row]])
    return Choice((cell.units.item(row),), (slots,), sets=len(cell.units), ties=len(rows))
