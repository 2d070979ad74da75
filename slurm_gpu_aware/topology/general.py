"""Mappings of any communication graph onto GPUs: exact for narrow graphs, else approximate.

The search places the job's GPUs one after the other. Two properties of a partial placement matter
for the rest: the GPUs it uses, and the GPUs of those job GPUs that have unplaced neighbours (the
frontier). Of all partial placements with both in common the search keeps the best one, so the work
grows with the width of the graph, not with the factorial of its size. Job GPUs with the same
neighbours are interchangeable and take GPUs in ascending order.

Graphs of up to eight job GPUs with a wider frontier are searched order by order (``orders``). For
other wide graphs the search keeps only the best few partial placements of each set of GPUs (a
beam). :func:`is_exact` says whether a search is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, perm
from typing import Literal

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.topology.orders import MAX_ORDERED, order_values, orders_of
from slurm_gpu_aware.topology.patterns import Edges
from slurm_gpu_aware.topology.subsets import masks_of_size, rank_of_mask

__all__ = ["best_mapping", "is_exact", "mapping_values"]

_MOST_ROWS = 1 << 22  # partial placements of all steps: 1 s to 2 s
_MOST_PRODUCTS = 1 << 34  # multiplications of one product over orders: about the same time
_BEAM = 1 << 15  # partial placements that a step of a beam search keeps


@dataclass(frozen=True)
class _Step:
    """Placement of one job GPU."""

    vertex: int
    neighbours: tuple[int, ...]
    """Columns of the frontier that communicate with the new GPU."""
    after: int | None
    """Column of the interchangeable predecessor, which takes a lower GPU."""
    keep: tuple[int, ...]
    """Columns of (old frontier, new GPU) that form the next frontier."""


@lru_cache(maxsize=128)
def _steps(edges: Edges, k: int) -> tuple[_Step, ...]:
    """Order of placement: the next job GPU is the one that leaves the smallest frontier."""
    near: list[set[int]] = [set() for _ in range(k)]
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    twin_of: dict[int, int] = {}
    for v in range(k):
        twins = [u for u in range(v) if near[u] - {v} == near[v] - {u}]
        if twins:
            twin_of[v] = twins[-1]
    next_twin = {u: v for v, u in twin_of.items()}
    frontier: list[int] = []
    placed: set[int] = set()
    steps: list[_Step] = []

    def remains(candidate: int) -> list[int]:
        """Frontier after the placement: job GPUs with an unplaced neighbour or next twin."""
        done = placed | {candidate}
        return [
            v
            for v in [*frontier, candidate]
            if near[v] - done or (v in next_twin and next_twin[v] not in done)
        ]

    for _ in range(k):
        ready = [v for v in range(k) if v not in placed and twin_of.get(v, -1) in {-1, *placed}]
        vertex = min(ready, key=lambda v: (len(remains(v)), -len(near[v] & placed), v))
        columns = [*frontier, vertex]
        after = twin_of.get(vertex)
        following = remains(vertex)
        steps.append(
            _Step(
                vertex,
                tuple(i for i, v in enumerate(frontier) if v in near[vertex]),
                None if after is None else frontier.index(after),
                tuple(columns.index(v) for v in following),
            )
        )
        placed.add(vertex)
        frontier = following
    return tuple(steps)


@dataclass(frozen=True)
class _Layer:
    """Best partial placements: distinct (mask, frontier) states."""

    mask: IntArray
    seats: IntArray
    """(S, width) GPUs of the frontier."""
    value: FloatArray
    parent: IntArray
    gpu: IntArray
    """GPU of the last step; ``parent`` is the state before it."""


def _extend(layer: _Layer, step: _Step, weights: FloatArray, total: bool, beam: bool) -> _Layer:
    n = weights.shape[0]
    gpus = np.arange(n)
    allowed = (layer.mask[:, None] >> gpus & 1) == 0
    if step.after is not None:
        allowed &= gpus > layer.seats[:, step.after, None]
    parent, gpu = np.nonzero(allowed)
    value = layer.value[parent]
    for column in step.neighbours:
        link = weights[layer.seats[parent, column], gpu]
        value = value + link if total else np.minimum(value, link)
    mask = layer.mask[parent] | (1 << gpu)
    seats = np.column_stack([layer.seats[parent], gpu])[:, list(step.keep)]
    # Best value first within a state; ties keep the order of creation (lowest GPUs first).
    state = mask.copy()
    wide = 16 + 4 * seats.shape[1] > 62
    if wide:
        order = np.lexsort((-value, *seats.T[::-1], mask))
        same = (mask[order][1:] == mask[order][:-1]) & (seats[order][1:] == seats[order][:-1]).all(
            axis=1
        )
    else:
        for column in range(seats.shape[1]):
            state = state << 4 | seats[:, column]
        order = np.lexsort((-value, state))
        same = state[order][1:] == state[order][:-1]
    first = order[np.concatenate([[True], ~same])] if order.size else order
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


Way = Literal["frontier", "orders", "beam"]


@lru_cache(maxsize=512)
def _way(edges: Edges, k: int, n: int) -> Way:
    """Search for a graph on ``k`` of ``n`` GPUs: exact if that takes about a second."""
    rows = sum(
        comb(n, i) * perm(i, len(step.keep)) * max(1, n - i)
        for i, step in enumerate(_steps(edges, k), start=1)
    )
    if rows <= _MOST_ROWS:
        return "frontier"
    if k <= MAX_ORDERED:
        used = orders_of(edges, k)
        if used.size * comb(n, k) <= _MOST_PRODUCTS:
            return "orders"
    return "beam"


def is_exact(edges: Edges, k: int, n: int) -> bool:
    """Say whether :func:`mapping_values` compares all mappings onto ``k`` of ``n`` GPUs."""
    return _way(edges, k, n) != "beam"


def _run(weights: FloatArray, edges: Edges, k: int, total: bool) -> list[_Layer]:
    none = np.zeros(1, dtype=np.int64)
    start = np.zeros(1) if total else np.full(1, np.inf)
    layers = [_Layer(none, np.zeros((1, 0), dtype=np.int64), start, none, none)]
    beam = _way(edges, k, weights.shape[0]) != "frontier"
    for step in _steps(edges, k):
        layers.append(_extend(layers[-1], step, weights, total, beam))
    return layers


def mapping_values(weights: FloatArray, edges: Edges, k: int) -> tuple[FloatArray, FloatArray]:
    """Largest sum and largest bottleneck of a mapping of the graph onto every ``k``-set.

    Parameters
    ----------
    weights : (n, n) GB/s, symmetric, n <= 16.
    edges : pairs of job GPUs 0..k-1, each once.

    Returns
    -------
    (C(n, k),) sums and (C(n, k),) bottlenecks in tie order; without edges 0 and inf.

    Notes
    -----
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
        last = _run(weights, edges, k, total)[-1]
        out = np.full(masks_of_size(n, k).size, -np.inf)
        out[rank_of_mask(n)[last.mask]] = last.value
        values.append(out)
    return values[0], values[1]


def best_mapping(weights: FloatArray, edges: Edges) -> tuple[int, ...]:
    """GPU of each job GPU in the mapping with the largest sum onto all ``n`` GPUs.

    Links of weight ``-inf`` are used only if the search finds no mapping without them.
    """
    n = weights.shape[0]
    layers = _run(weights, edges, n, total=True)
    seat, state = [0] * n, 0
    for layer, step in zip(reversed(layers[1:]), reversed(_steps(edges, n)), strict=True):
        seat[step.vertex] = int(layer.gpu[state])
        state = int(layer.parent[state])
    return tuple(seat)
