"""Exact pattern matching: the best GPUs of a machine for a communication pattern.

For every set of k GPUs the best embedding of the pattern is found (``rings``, ``trees``,
``general``), so choosing among all sets and all embeddings is one pass over a table of C(n, k)
numbers. Tables depend on the machine, the pattern and k only, not on who is free: they are kept
per hardware graph, and a decision on a known machine is a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.cluster import FloatArray
from slurm_gpu_aware.topology.bandwidth import EffBwModel, eq2, link_kinds, preserved_bw
from slurm_gpu_aware.topology.general import best_mapping, mapping_values
from slurm_gpu_aware.topology.graph import HardwareGraph
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.rings import best_ring, ring_counts, ring_values, ring_with_counts
from slurm_gpu_aware.topology.subsets import masks_of_size, members_of_size
from slurm_gpu_aware.topology.trees import best_tree, tree_values

__all__ = ["Match", "agg_table", "eff_table", "match", "preserved_table"]

_RING, _TREE = Pattern("ring"), Pattern("tree")


def _frozen(*arrays: FloatArray) -> tuple[FloatArray, ...]:
    for array in arrays:
        array.setflags(write=False)
    return arrays


@lru_cache(maxsize=512)
def _link_tables(graph: HardwareGraph, pattern: Pattern, k: int) -> tuple[FloatArray, ...]:
    """Best sum and best bottleneck of the pattern over every ``k``-set, in tie order."""
    sets = masks_of_size(graph.n, k).size
    edges = pattern.edges_for(k)
    if not edges:
        return _frozen(np.zeros(sets), np.zeros(sets))
    if graph.is_uniform:
        link = float(graph.gbps.max())
        return _frozen(np.full(sets, link * len(edges)), np.full(sets, link))
    if pattern.name == "ring":
        return _frozen(*ring_values(graph.gbps, k))
    if pattern.name == "ring+tree":
        ring, tree = _link_tables(graph, _RING, k), _link_tables(graph, _TREE, k)
        return _frozen(ring[0] + tree[0], np.minimum(ring[1], tree[1]))
    if pattern.name == "all-to-all":
        members = members_of_size(graph.n, k)
        first, second = np.triu_indices(k, 1)
        links = graph.gbps[members[first], members[second]]
        return _frozen(links.sum(axis=0), links.min(axis=0))
    if pattern.name == "tree":
        return _frozen(*tree_values(graph.gbps, k))
    return _frozen(*(mapping_values(graph.gbps, edges, k, total=t) for t in (True, False)))


def agg_table(graph: HardwareGraph, pattern: Pattern, k: int) -> FloatArray:
    """(C(n, k),) AggBW (eq. 1) of the best embedding on every set, tie order. GB/s. Read-only.

    Raises ValueError if the machine has more than ``subsets.MAX_EXACT`` GPUs.
    """
    return _link_tables(graph, pattern, k)[0]


@lru_cache(maxsize=512)
def _eq2_table(graph: HardwareGraph, k: int, model: EffBwModel) -> FloatArray:
    """Best eq. 2 over the rings of every set."""
    sets = masks_of_size(graph.n, k).size
    if k == 1:
        return _frozen(np.full(sets, float(eq2(0, 0, 0, model))))[0]
    reach = ring_counts(link_kinds(graph), k)
    best = np.full(sets, -np.inf)
    for x in range(k + 1):
        for y in range(k + 1 - x):
            seen = (reach[x] >> np.uint32(y)) & np.uint32(1) == 1
            if seen.any():
                value = float(eq2(x, y, k - x - y, model))
                best[seen] = np.maximum(best[seen], value)
    return _frozen(best)[0]


def eff_table(graph: HardwareGraph, pattern: Pattern, k: int, model: EffBwModel) -> FloatArray:
    """(C(n, k),) EffBW of the best embedding on every set, tie order. GB/s. Read-only.

    Eq. 2 is a model of rings and scores rings whatever the pattern is, as the authors' code does.
    The bottleneck of a pattern without edges is 0: no link helps it.
    """
    if model.coefficients is not None:
        return _eq2_table(graph, k, model)
    return _link_tables(graph, pattern, k)[1]


def preserved_table(graph: HardwareGraph, free: int, k: int) -> FloatArray:
    """(C(n, k),) PreservedBW (eq. 3) on the free GPUs for every set, tie order. GB/s.

    Only sets inside ``free`` (a mask) mean anything.
    """
    return preserved_bw(graph, free, masks_of_size(graph.n, k))


@dataclass(frozen=True)
class Match:
    """A set of GPUs with the embedding that counts for it."""

    gpus: tuple[int, ...]
    """The set, ascending."""
    order: tuple[tuple[int, ...], ...]
    """GPU of each position of the pattern; two entries for ``ring+tree``."""
    links_gbps: tuple[float, ...]
    """Bandwidth of each link that this embedding uses, in the order of ``Pattern.edges_for``."""
    agg_gbps: float
    """AggBW: the largest sum of any embedding on the set."""
    eff_gbps: float
    """EffBW: the largest of any embedding on the set."""


@lru_cache(maxsize=4096)
def match(
    graph: HardwareGraph,
    gpus: tuple[int, ...],
    pattern: Pattern,
    model: EffBwModel,
    *,
    by_sum: bool = False,
) -> Match:
    """The best embedding on one given set of at most 16 GPUs.

    ``by_sum``: the one with the largest AggBW. Otherwise the one with the largest EffBW and, under
    the bottleneck model, the largest sum among those.
    """
    part = graph.subgraph(gpus)
    k = part.n
    agg = float(agg_table(part, pattern, k)[0])
    eff = float(eff_table(part, pattern, k, model)[0])
    orders: list[tuple[int, ...]] = []
    for piece in _pieces(pattern):
        weights = part.gbps
        if not by_sum and model.coefficients is None:
            slowest = float(_link_tables(part, piece, k)[1][0])
            weights = np.where(weights >= slowest, weights, -np.inf)
        orders.append(_layout(part, piece, weights, None if by_sum else model))
    links = [
        float(part.gbps[order[a], order[b]])
        for order, piece in zip(orders, _pieces(pattern), strict=True)
        for a, b in piece.edges_for(k)
    ]
    named = tuple(tuple(gpus[i] for i in order) for order in orders)
    return Match(gpus, named, tuple(links), agg, eff)


def _pieces(pattern: Pattern) -> tuple[Pattern, ...]:
    return (_RING, _TREE) if pattern.name == "ring+tree" else (pattern,)


def _layout(
    part: HardwareGraph, piece: Pattern, weights: FloatArray, model: EffBwModel | None
) -> tuple[int, ...]:
    """Order of the best embedding of one pattern on all GPUs of ``part``."""
    edges = piece.edges_for(part.n)
    if not edges or part.is_uniform or piece.name == "all-to-all":
        return tuple(range(part.n))
    if piece.name == "tree":
        return best_tree(weights)
    if piece.name != "ring":
        return best_mapping(weights, edges)
    if model is not None and model.coefficients is not None:
        return ring_with_counts(
            link_kinds(part), lambda x, y: float(eq2(x, y, part.n - x - y, model))
        )
    return best_ring(weights)
