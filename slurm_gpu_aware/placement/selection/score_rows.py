"""Values of candidate rows by scores."""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.masks import every, popcount, unpack
from slurm_gpu_aware.topology.subsets import slots_of

__all__ = [
    "SUM_WEIGHT",
    "best_slots",
    "fixed_scores",
    "least_totals",
    "left_beside",
]

SUM_WEIGHT = 1 << 16
"""Weight of the sum of scores relative to GPUs left on nodes, so that the sum decides first."""


def fixed_scores(cell: Cell, rows: IntArray | list[int] | slice = slice(None)) -> IntArray:
    """(C, W) scores of the rows; on plain nodes every GPU has the worst score of the row."""
    supply = cell.supply
    nodes = cell.units[rows]
    fixed = supply.table.fixed[nodes]
    if not every(supply.cluster.indexed) and not supply.request.whole_node:
        plain = ~supply.cluster.indexed[nodes]
        bits = unpack(cell.masks[rows], fixed.shape[1])
        worst = np.where(bits, fixed, 0).max(axis=1)
        fixed = np.where(plain[:, None], worst[:, None], fixed)
    return fixed


def best_slots(cell: Cell, rows: list[int], count: int) -> list[tuple[tuple[int, ...], int]]:
    """The ``count`` best slots of each row (lowest index on ties) and their sum."""
    supply = cell.supply
    able = [slots_of(mask) for mask in cell.masks[rows].tolist()]
    if supply.request.whole_node:
        count = supply.cluster.shape[1]
    elif cell.bound_index == 0:
        total = count * supply.table.fixed_value(0)
        return [(slots[:count], total) for slots in able]
    found = []
    for slots, fixed in zip(able, fixed_scores(cell, rows).tolist(), strict=True):
        best = sorted(slots, key=fixed.__getitem__)[:count]
        found.append((tuple(sorted(best)), sum(map(fixed.__getitem__, best))))
    return found


def left_beside(cell: Cell) -> IntArray:
    """(C,) GPUs that stay free on each row's node."""
    if cell.supply.request.whole_node:
        return np.zeros(len(cell.units), dtype=np.int64)
    free = popcount(cell.supply.free[cell.units]).astype(np.int64)
    return np.asarray(free - cell.split.per_node)


def least_totals(cell: Cell) -> IntArray | int:
    """(C,) least sum of scores of ``per_node`` slots of each row; one number if all are equal."""
    if cell.bound_index == 0 and not cell.supply.request.whole_node:
        # All GPUs of the cell have the lowest score, so every set has the same sum.
        value = cell.supply.table.fixed_value(0)
        return value * cell.split.per_node
    per_node = cell.split.per_node
    allowed = cell.allowed
    if cell.supply.request.whole_node:
        sums: IntArray = np.where(allowed, fixed_scores(cell), 0).sum(axis=1)
        return sums
    fixed = np.where(allowed, fixed_scores(cell), np.iinfo(np.int64).max >> 8)
    if per_node < fixed.shape[1]:
        fixed.partition(per_node - 1, axis=1)
    least: IntArray = fixed[:, :per_node].sum(axis=1)
    return least
