"""Comparison of groups (switches, racks, rows) for a job on several nodes.

A large cluster has thousands of groups, and the best set of a group is costly to find. A few array
operations give a bound of its value for all groups. Groups are searched in the order of this bound
until no remaining one can be better: exact, and usually done after one or two groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.fit import fitting_groups
from slurm_gpu_aware.placement.masks import popcount

__all__ = [
    "Candidate",
    "GroupKey",
    "Walk",
    "best_first",
    "fullest",
    "groups_of",
    "load_of_groups",
    "top_rows",
]

_MOST_GROUPS = 32  # groups that are compared without a bound

GroupKey = tuple[float, ...]
"""Value of a group: less is better, compared in order; it ends with load and number."""
Candidate = tuple[GroupKey, int]
"""The least possible key of a group, and the group."""


def load_of_groups(cell: Cell) -> FloatArray:
    """(groups,) free GPUs of each group of the cell's level."""
    group, free = cell.level.group, popcount(cell.supply.free)
    known = group >= 0
    if not known.all():
        group, free = group[known], free[known]
    load = np.bincount(group, weights=free, minlength=cell.level.groups)
    return load.astype(np.float64, copy=False)


def groups_of(cell: Cell) -> IntArray:
    """Numbers of the groups that hold a set of the cell, ascending."""
    fine = fitting_groups(cell.supply, cell.level, cell.split, cell.units, cell.masks)
    return np.flatnonzero(fine)


def fullest(cell: Cell, numbers: IntArray) -> IntArray:
    """The groups with the fewest free GPUs, at most ``_MOST_GROUPS``."""
    return np.asarray(numbers[np.lexsort((numbers, load_of_groups(cell)[numbers]))][:_MOST_GROUPS])


def top_rows(group: IntArray, order: IntArray, numbers: IntArray, count: int) -> IntArray:
    """(G, count) the first ``count`` rows of each of these groups.

    Parameters
    ----------
    group : (C,) group of each row.
    order : rows, best first.
    numbers : (G,) ascending groups, each with at least ``count`` rows in ``order``.
    """
    by_group = order[group[order].argsort(kind="stable")]
    starts = group[by_group].searchsorted(numbers)
    return np.asarray(by_group[starts[:, None] + np.arange(count)])


class Walk:
    """Iterator over groups by their least possible key, until no other one can be better."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._candidates = candidates
        self._best: GroupKey | None = None

    def __iter__(self) -> Iterator[Candidate]:
        for bound, number in self._candidates:
            if self._best is not None and self._best < bound:
                return
            yield bound, number

    def improves(self, key: GroupKey) -> bool:
        """Say whether the key is better than all before it; if so, store it."""
        if self._best is not None and key >= self._best:
            return False
        self._best = key
        return True


def best_first(numbers: IntArray, load: FloatArray, *least: FloatArray) -> Iterator[Candidate]:
    """Groups by their least possible key, with this key.

    Parameters
    ----------
    numbers : (G,) groups.
    load : (groups,) free GPUs of every group; of equal groups the emptiest comes last.
    least : (G,) lower bounds of the parts of the key, in order.
    """
    columns = (*least, load[numbers], numbers)
    for at in np.lexsort(columns[::-1]).tolist():
        yield tuple(column.item(at) for column in columns), int(numbers[at])
