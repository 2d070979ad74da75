"""Kinds of nodes, and the best and worst sets of a kind by links.

Nodes with the same link graph and the same free and allowed GPUs are one *kind*: they have the same
best set, so thousands of nodes cost little more than one.

===========  ================================================================================
objective    a set is better if
===========  ================================================================================
``effbw``    its EffBW is larger; among equals, its AggBW
``aggbw``    its AggBW is larger
``preserved``  it takes less link bandwidth from the free GPUs. On one node this is the largest
             PreservedBW (eq. 3); over nodes it is eq. 3 on all free GPUs
===========  ================================================================================
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import Literal, NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, uniform_graph
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.level_views import by_identity
from slurm_gpu_aware.topology.bandwidth import EffBwModel, eq2_model, preserved_bw
from slurm_gpu_aware.topology.matching import agg_table, eff_table
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.subsets import (
    MAX_EXACT,
    mask_of,
    masks_of_size,
    rank_of_mask,
    slots_of,
)

Objective = Literal["effbw", "aggbw", "preserved"]

_ALL = (1 << 64) - 1  # NumPy returns masks of 64 slots with a sign
_FEW_ROWS = 32  # rows up to which a dictionary is faster than a sort of arrays
_refit = lru_cache(maxsize=64)(eq2_model)
_unmeasured = lru_cache(maxsize=64)(uniform_graph)


@dataclass(frozen=True)
class Goal:
    """Goal of a selection by links."""

    objective: Objective
    pattern: Pattern
    model: EffBwModel  # EffBW of GPUs for which it was not fitted.

    def model_of(self, graph: HardwareGraph) -> EffBwModel:
        """EffBW of a graph: as fitted to its GPUs, else that of the policy."""
        return self.model if graph.effbw is None else _refit(graph.effbw)


class Kind(NamedTuple):
    """Nodes with equal links; GPUs are masks."""

    graph: HardwareGraph
    free: int
    allowed: int
    plain: bool


@dataclass(frozen=True)
class Kinds:
    """The rows of a cell, sorted into kinds."""

    of_row: IntArray  # (C,) kind of each row.
    each: tuple[Kind, ...]


@dataclass(frozen=True)
class BestSet:
    """Best or worst set of one kind of node. Larger values are better, compared in order."""

    values: tuple[float, float]
    mask: int
    sets: int
    ties: int
    promised: int = 0  # On plain nodes the set with these values; ``mask`` is then only a count.


def graph_of(cluster: Cluster, node: int) -> HardwareGraph:
    """Link graph of a node, with all its slots; equal links if none was measured."""
    graph = cluster.graphs[node] if cluster.graphs else None
    if graph is None:
        return _unmeasured(cluster.shape[1])
    used = np.flatnonzero(cluster.exists[node])
    return graph.padded(int(used[-1]) + 1 if used.size else 0)


def kinds_of(cell: Cell) -> Kinds:
    """The rows of a cell as kinds: same graph, same free and same allowed GPUs."""
    cluster = cell.supply.cluster
    graphs: tuple[HardwareGraph, ...] = (_unmeasured(cluster.shape[1]),)
    number = np.zeros(cluster.shape[0], dtype=np.int64)
    if cluster.graphs:
        number, graphs = _graph_numbers(cluster.graphs, cluster.shape[1])
    of_row, kinds = sorted_rows(cell, number, len(graphs))
    each = [Kind(graphs[g].padded(f.bit_length()), f, a, plain) for g, f, a, plain in kinds]
    return Kinds(of_row, tuple(each))


def sorted_rows(
    cell: Cell, number: IntArray, most: int
) -> tuple[IntArray, list[tuple[int, int, int, bool]]]:
    """(C,) kind of each row, and per kind (machine, free GPUs, allowed GPUs as masks, plain).

    ``number``: (N,) number of each node's machine, below ``most``.
    """
    cluster, units = cell.supply.cluster, cell.units
    width = cluster.shape[1]
    columns = (
        number[units],
        cell.supply.free[units].astype(np.int64),
        cell.masks.astype(np.int64),
        (~cluster.indexed[units]).astype(np.int64),
    )
    if len(units) > _FEW_ROWS and 2 * width + 1 + most.bit_length() <= 62:
        # One integer per row sorts much faster than rows.
        code = ((columns[0] << width | columns[1]) << width | columns[2]) << 1 | columns[3]
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        picked = list(zip(*(column[first].tolist() for column in columns), strict=True))
    else:
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        picked = sorted(set(rows))
        position = {row: at for at, row in enumerate(picked)}
        inverse = np.array([position[row] for row in rows], dtype=np.int64)
    return inverse.reshape(-1), [(m, f & _ALL, a & _ALL, bool(p)) for m, f, a, p in picked]


@by_identity
def _graph_numbers(
    graphs: tuple[HardwareGraph | None, ...], width: int
) -> tuple[IntArray, tuple[HardwareGraph, ...]]:
    """(N,) number of each node's graph, and the distinct graphs."""
    by_id: dict[int, int] = {}
    distinct: dict[HardwareGraph, int] = {}
    number = np.empty(len(graphs), dtype=np.int64)
    for node, graph in enumerate(graphs):
        if id(graph) not in by_id:
            known = graph if graph is not None else _unmeasured(width)
            by_id[id(graph)] = distinct.setdefault(known, len(distinct))
        number[node] = by_id[id(graph)]
    return number, tuple(distinct)


@lru_cache(maxsize=1 << 16)
def best_set(graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal) -> BestSet:
    """Best ``k`` of the allowed GPUs (a mask) of a node with these free GPUs."""
    if graph.n > MAX_EXACT:
        return _best_set_of_large(graph, free, allowed, k, goal)
    masks, first, second = _scored(graph, free, allowed, k, goal)
    at, ties = _largest(first, second)
    return BestSet((float(first[at]), float(second[at])), int(masks[at]), len(masks), ties)


@lru_cache(maxsize=4096)
def worst_set(graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal) -> BestSet:
    """Worst ``k`` of the allowed GPUs, which count on a plain node, where Slurm chooses."""
    slots = slots_of(allowed)
    lowest = mask_of(slots[:k])
    if graph.n > MAX_EXACT:
        values = _values(graph, free, slots[:k], goal)
        return BestSet(values, lowest, comb(len(slots), k), 1, lowest)
    masks, first, second = _scored(graph, free, allowed, k, goal)
    at, _ = _largest(-first, -second)
    values = float(first[at]), float(second[at])
    return BestSet(values, lowest, len(masks), len(masks), int(masks[at]))


def _largest(first: FloatArray, second: FloatArray) -> tuple[int, int]:
    """First position of the largest pair, and the number of such pairs."""
    top = first == first.max()
    top &= second == second[top].max()
    return int(top.argmax()), int(top.sum())


def _scored(
    graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Masks of the candidate sets in tie order and their values (larger is better)."""
    masks = masks_of_size(graph.n, k)
    if allowed != (1 << graph.n) - 1:
        masks = masks[(masks & ~allowed) == 0]
    return masks, *table_values(graph, free, masks, k, goal)


def table_values(
    graph: HardwareGraph, free: int, masks: IntArray, k: int, goal: Goal
) -> tuple[FloatArray, FloatArray]:
    """First and second value of sets of ``k`` GPUs; up to 16 slots, or for ``preserved``."""
    if goal.objective == "preserved":
        first = preserved_bw(graph, free, masks) - float(preserved_bw(graph, free, 0))
        return first, np.zeros(len(masks))
    rank = rank_of_mask(graph.n, k)[masks]
    agg = agg_table(graph, goal.pattern, k)[rank]
    if goal.objective == "aggbw":
        return agg, np.zeros(len(masks))
    return eff_table(graph, goal.pattern, k, goal.model_of(graph))[rank], agg


def _values(
    graph: HardwareGraph, free: int, slots: tuple[int, ...], goal: Goal
) -> tuple[float, float]:
    """Values of one set on a machine that is too large for tables."""
    if goal.objective == "preserved":
        mask = mask_of(slots)
        return float(preserved_bw(graph, free, mask) - preserved_bw(graph, free, 0)), 0.0
    if len(slots) > MAX_EXACT:
        inside = graph.gbps[np.ix_(slots, slots)]
        return float(inside[np.triu_indices(len(slots), 1)].min()), float(inside.sum() / 2)
    part = graph.subgraph(slots)
    first, second = table_values(part, 0, masks_of_size(part.n, part.n), part.n, goal)
    return float(first[0]), float(second[0])


def _best_set_of_large(
    graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal
) -> BestSet:
    """Best set on more than 16 GPUs: exact if at most 16 are allowed, else grown from each."""
    slots = slots_of(allowed)
    if len(slots) <= MAX_EXACT and goal.objective != "preserved":
        part = graph.subgraph(slots)
        full = (1 << part.n) - 1
        best = best_set(part, full, full, k, goal)
        return replace(best, mask=mask_of([slots[i] for i in slots_of(best.mask)]))
    grown = {_grown(graph, free, slots, seed, k, goal) for seed in slots}
    scored = [(_values(graph, free, chosen, goal), chosen) for chosen in grown]
    top = max(value for value, _ in scored)
    equal = sorted(chosen for value, chosen in scored if value == top)
    return BestSet(top, mask_of(equal[0]), len(scored), len(equal))


def _grown(
    graph: HardwareGraph, free: int, slots: tuple[int, ...], seed: int, k: int, goal: Goal
) -> tuple[int, ...]:
    """``k`` GPUs; each next one has the best links to the chosen (or the least to the others)."""
    chosen = [seed]
    others = [i for i in slots_of(free) if i < graph.n]
    while len(chosen) < k:
        gain = graph.gbps[:, chosen].sum(axis=1)
        if goal.objective == "preserved":
            gain = 2 * gain - graph.gbps[:, others].sum(axis=1)
        rest = [s for s in slots if s not in chosen]
        chosen.append(max(rest, key=lambda s: (gain[s], -s)))
    return tuple(sorted(chosen))
