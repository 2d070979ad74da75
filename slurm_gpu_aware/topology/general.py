"""Mappings of any communication graph onto GPUs: exact for small or narrow graphs.

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

from functools import lru_cache
from itertools import combinations, permutations
from math import comb, perm
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.topology.patterns import Edges
from slurm_gpu_aware.topology.subsets import (
    exact_type,
    masks_of_size,
    members_of_size,
    rank_of_mask,
)

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
