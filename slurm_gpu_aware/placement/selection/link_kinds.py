"""Kinds of nodes and the goal of a selection by links.

Nodes with the same link graph and the same free and allowed GPUs are one *kind*: they have the same
best set, so thousands of nodes cost little more than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, uniform_graph
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.identity_cache import by_identity
from slurm_gpu_aware.placement.selection.base import Choice, Considered
from slurm_gpu_aware.topology.bandwidth import EffBwModel
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.subsets import slots_of

__all__ = [
    "Goal",
    "Kinds",
    "Objective",
    "choice_of",
    "graph_of",
    "kinds_of",
    "sorted_rows",
]

Objective = Literal["effbw", "aggbw", "preserved"]

_ALL = (1 << 64) - 1  # NumPy returns masks of 64 slots with a sign
_FEW_ROWS = 32  # rows up to which a dictionary is faster than a sort of arrays


@dataclass(frozen=True)
class Goal:
    """Goal of a selection by links."""

    objective: Objective
    pattern: Pattern
    model: EffBwModel


@dataclass(frozen=True)
class Kinds:
    """The rows of a cell, sorted into kinds."""

    of_row: IntArray
    """(C,) kind of each row."""
    graph: tuple[HardwareGraph, ...]
    free: tuple[int, ...]
    allowed: tuple[int, ...]
    plain: tuple[bool, ...]


@lru_cache(maxsize=64)
def _unmeasured(n: int) -> HardwareGraph:
    return uniform_graph(n)


def graph_of(cluster: Cluster, node: int) -> HardwareGraph:
    """Link graph of a node; equal links if none was measured.

    Slots that the graph lacks have paths through the host.
    """
    width = cluster.shape[1]
    graph = cluster.graphs[node] if cluster.graphs else None
    if graph is None:
        return _unmeasured(width)
    used = np.flatnonzero(cluster.exists[node])
    return graph.padded(int(used[-1]) + 1 if used.size else 0)


def kinds_of(cell: Cell) -> Kinds:
    """Sort the rows of a cell into kinds: same graph, same free and same allowed GPUs."""
    number, graphs = _graph_numbers(cell.supply.cluster)
    of_row, kinds = sorted_rows(cell, number, len(graphs))
    return Kinds(
        of_row=of_row,
        graph=tuple(graphs[g].padded(free.bit_length()) for g, free, _, _ in kinds),
        free=tuple(free for _, free, _, _ in kinds),
        allowed=tuple(allowed for _, _, allowed, _ in kinds),
        plain=tuple(plain for _, _, _, plain in kinds),
    )


def sorted_rows(
    cell: Cell, number: IntArray, most: int
) -> tuple[IntArray, list[tuple[int, int, int, bool]]]:
    """Sort the rows of a cell into kinds.

    Parameters
    ----------
    number : (N,) number of each node's machine, below ``most``.

    Returns
    -------
    (C,) kind of each row, and per kind (machine, free GPUs, allowed GPUs as masks, plain).
    """
    cluster, units = cell.supply.cluster, cell.units
    width = cluster.shape[1]
    columns = (
        number[units],
        cell.supply.free[units].astype(np.int64),
        cell.masks.astype(np.int64),
        (~cluster.indexed[units]).astype(np.int64),
    )
    if 2 * width + 1 + most.bit_length() <= 62:
        # One integer per row sorts much faster than rows.
        code = ((columns[0] << width | columns[1]) << width | columns[2]) << 1 | columns[3]
        first, inverse = _first_of_each(code)
    else:
        table = np.stack(columns, axis=1)
        _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    picked = zip(*(column[first].tolist() for column in columns), strict=True)
    kinds = [(m, f & _ALL, a & _ALL, bool(p)) for m, f, a, p in picked]
    return inverse.reshape(-1), kinds


def _first_of_each(code: IntArray) -> tuple[IntArray, IntArray]:
    """Position of each distinct number, in ascending order, and the inverse index."""
    if len(code) > _FEW_ROWS:
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse
    known: dict[int, int] = {}
    for at, one in enumerate(code.tolist()):
        known.setdefault(one, at)
    ordered = sorted(known)
    number = dict(zip(ordered, range(len(ordered)), strict=True))
    inverse = np.array([number[one] for one in code.tolist()], dtype=np.int64)
    return np.array([known[one] for one in ordered], dtype=np.int64), inverse


def _graph_numbers(cluster: Cluster) -> tuple[IntArray, tuple[HardwareGraph, ...]]:
    """(N,) number of each node's graph, and the distinct graphs."""
    if not cluster.graphs:
        return np.zeros(cluster.shape[0], dtype=np.int64), (_unmeasured(cluster.shape[1]),)
    return _numbers_of(cluster.graphs, cluster.shape[1])


@by_identity
def _numbers_of(
    graphs: tuple[HardwareGraph | None, ...], width: int
) -> tuple[IntArray, tuple[HardwareGraph, ...]]:
    by_id: dict[int, int] = {}
    distinct: dict[HardwareGraph, int] = {}
    number = np.empty(len(graphs), dtype=np.int64)
    for node, graph in enumerate(graphs):
        if id(graph) not in by_id:
            known = graph if graph is not None else _unmeasured(width)
            by_id[id(graph)] = distinct.setdefault(known, len(distinct))
        number[node] = by_id[id(graph)]
    return number, tuple(distinct)


def choice_of(
    cell: Cell,
    rows: IntArray,
    masks: list[int],
    *,
    sets: int,
    ties: int,
    considered: tuple[Considered, ...] = (),
    cut: str | None = None,
) -> Choice:
    """Build the choice of these masks on these rows."""
    slots = tuple(slots_of(mask) for mask in masks)
    nodes = tuple(int(node) for node in cell.units[rows])
    fixed = cell.supply.table.fixed.item
    total = sum(fixed(node, slot) for node, part in zip(nodes, slots, strict=True) for slot in part)
    return Choice(nodes, slots, total, len(cell.units), sets, ties, considered, cut)
