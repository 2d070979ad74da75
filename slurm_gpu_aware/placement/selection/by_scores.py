"""Selection by scores: least variability, then best fit, then the lowest index.

All sets of a cell have the same worst score. Among them the least sum of scores wins (PAL: "least
variability"; integers of 1e-5, so that order does not matter), then the node with the fewest GPUs
left (best fit), then the lowest node and the lowest slots.
"""

from __future__ import annotations

from functools import cache
from math import comb

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.masks import popcount
from slurm_gpu_aware.placement.selection.base import MOST_CONSIDERED, Choice, Considered, Selection
from slurm_gpu_aware.placement.selection.by_scores_same import choose_same
from slurm_gpu_aware.placement.selection.by_scores_uneven import choose_uneven
from slurm_gpu_aware.placement.selection.groups import groups_of, load_of_groups, top_rows
from slurm_gpu_aware.placement.selection.score_rows import (
    SUM_WEIGHT,
    best_slots,
    least_totals,
    left_beside,
)

__all__ = ["ByScores"]


class ByScores(Selection):
    """The least sum of scores. ``best_fit`` False: first fit (lowest node)."""

    def __init__(self, *, best_fit: bool = True) -> None:
        self.best_fit = best_fit

    def one_node(self, cell: Cell) -> Choice:
        """Return the set of the row with the fewest GPUs left."""
        units = cell.units
        sizes = popcount(cell.masks).astype(np.int64)
        if len(units) == 1 or not self.best_fit:
            row, ties = 0, len(units)
            rows = [row]
        else:
            # After the GPUs left on the node, the candidates left: larger rows stay whole.
            key = least_totals(cell) * SUM_WEIGHT + (left_beside(cell) * 128 + sizes)
            rows = _least(key, MOST_CONSIDERED)
            row = rows[0]
            ties = int(np.count_nonzero(key == key.item(row)))
        taken = best_slots(cell, rows, cell.split.per_node)
        slots, total = taken[0]
        return Choice(
            nodes=(units.item(row),),
            slots=(slots,),
            total=total,
            candidates=len(units),
            sets=_count_sets(cell, sizes),
            ties=ties,
            considered=tuple(
                [
                    Considered(node, chosen, 1e-5 * summed / max(len(chosen), 1))
                    for node, (chosen, summed) in zip(units[rows].tolist(), taken, strict=True)
                ]
            ),
        )

    def even(self, cell: Cell) -> Choice | None:
        """Return the best rows of the best group."""
        count = cell.split.nodes
        key = np.zeros(len(cell.units), dtype=np.int64)
        if self.best_fit:
            key += least_totals(cell) * SUM_WEIGHT + left_beside(cell)
        required = cell.supply.request.required
        if required:
            key[np.isin(cell.units, list(required))] -= 1 << 60
        group, fine = cell.group, groups_of(cell)
        if not len(fine):
            return None
        top = top_rows(group, key.argsort(kind="stable"), fine, count)
        which = 0
        if len(fine) > 1:
            which = int(np.lexsort((fine, load_of_groups(cell)[fine], key[top].sum(axis=1)))[0])
        last = key[top[which, -1]]
        chosen = np.sort(top[which])
        picked = best_slots(cell, chosen.tolist(), cell.split.per_node)
        return Choice(
            nodes=tuple(int(cell.units[row]) for row in chosen),
            slots=tuple(slots for slots, _ in picked),
            total=sum(total for _, total in picked),
            candidates=len(cell.units),
            sets=None,
            ties=int(((key == last) & (group == fine[which])).sum()),
        )

    def same_indices(self, cell: Cell) -> Choice | None:
        """Return the index set and the nodes, chosen together."""
        return choose_same(cell, self.best_fit)

    def uneven(self, cell: Cell) -> Choice | None:
        """Return the best GPUs of the best group."""
        return choose_uneven(cell)


def _least(key: IntArray, count: int) -> list[int]:
    """Positions of the ``count`` least keys in ascending order, the lowest position on ties."""
    if len(key) <= 64:
        order = key.argsort(kind="stable")[:count]
    else:
        bound = np.partition(key, count - 1)[count - 1]
        inside = np.flatnonzero(key < bound)
        near = np.concatenate([inside, np.flatnonzero(key == bound)[: count - len(inside)]])
        near.sort()
        order = near[key[near].argsort(kind="stable")]
    least: list[int] = order.tolist()
    return least


def _count_sets(cell: Cell, sizes: IntArray) -> int:
    """Number of one-node sets in the cell; ``sizes`` are the GPUs of each row."""
    if cell.supply.request.whole_node:
        return len(cell.units)
    per_node, width = cell.split.per_node, cell.supply.cluster.shape[1]
    if comb(width, per_node) * len(cell.units) >= 1 << 62:
        return sum(comb(size, per_node) for size in sizes.tolist())
    return int(_combinations(width, per_node)[sizes].sum())


@cache
def _combinations(width: int, size: int) -> IntArray:
    """C(n, size) for n = 0..width."""
    return np.array([comb(n, size) for n in range(width + 1)], dtype=np.int64)
