"""Selections among the sets of a cell: base class, result, values and groups of candidate rows.

A large cluster has thousands of groups (switches, racks), and the best set of a group is costly to
find. A few array operations give a bound of its value for all groups. Groups are searched in the
order of this bound until no remaining one can be better: exact, and usually done after one or two.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.feasible import fitting_groups
from slurm_gpu_aware.placement.level_views import every, popcount, unpack
from slurm_gpu_aware.topology.subsets import slots_of

MOST_CONSIDERED = 5  # sets in an account
SUM_WEIGHT = 1 << 16
"""Weight of the sum of scores relative to GPUs left on nodes, so that the sum decides first."""
GroupKey = tuple[float, ...]
"""Value of a group: less is better, compared in order; it ends with load and number."""
Candidate = tuple[GroupKey, int]  # The least possible key of a group, and the group.


class Considered(NamedTuple):
    """A one-node set that was compared, for the account."""

    node: int
    slots: tuple[int, ...]
    value: float  # Compared value: the mean score, or a bandwidth in GB/s.


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs, and the candidates of the choice."""

    nodes: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    sets: int | None  # Candidate sets; None: not counted.
    ties: int  # Candidates equal to the chosen one except for the index.
    considered: tuple[Considered, ...] = ()
    """The best sets of the best nodes, the chosen set first; empty for several nodes."""
    cut: str | None = None
    """Words for the account on the part of the cell that was not compared; None: none."""


class Selection(ABC):
    """A way to compare sets, with one method for each shape (`shapes`)."""

    def choose(self, cell: Cell) -> Choice:
        """Return the best set of the cell, which holds one."""
        if cell.split.nodes == 1:
            return self.one_node(cell)
        if cell.split.uneven:
            return self.uneven(cell)
        return self.same_indices(cell) if cell.split.same_slots else self.even(cell)

    @abstractmethod
    def one_node(self, cell: Cell) -> Choice:
        """Return the best set of one row."""

    @abstractmethod
    def even(self, cell: Cell) -> Choice:
        """Return the best rows of one group, with the same count of GPUs each."""

    @abstractmethod
    def same_indices(self, cell: Cell) -> Choice:
        """Return the best rows of one group, with the same slots each."""

    @abstractmethod
    def uneven(self, cell: Cell) -> Choice:
        """Return the best GPUs of one group, with any count of each row."""


def fixed_scores(cell: Cell, rows: IntArray | list[int] | slice = slice(None)) -> IntArray:
    """(C, W) scores of the rows; on plain nodes every GPU has the worst score of the row."""
    supply = cell.supply
    nodes = cell.units[rows]
    fixed = supply.table.fixed[nodes]
    if not every(supply.cluster.indexed) and not supply.request.nodes.whole:
        plain = ~supply.cluster.indexed[nodes]
        bits = unpack(cell.masks[rows], fixed.shape[1])
        worst = np.where(bits, fixed, 0).max(axis=1)
        fixed = np.where(plain[:, None], worst[:, None], fixed)
    return fixed


def best_slots(cell: Cell, rows: list[int], count: int) -> list[tuple[tuple[int, ...], int]]:
    """The ``count`` best slots of each row (lowest index on ties) and their sum."""
    supply = cell.supply
    able = [slots_of(mask) for mask in cell.masks[rows].tolist()]
    if supply.request.nodes.whole:
        count = supply.cluster.shape[1]
    elif cell.bound_index == 0:
        total = count * supply.table.least_fixed
        return [(slots[:count], total) for slots in able]
    found = []
    for slots, fixed in zip(able, fixed_scores(cell, rows).tolist(), strict=True):
        best = sorted(slots, key=fixed.__getitem__)[:count]
        found.append((tuple(sorted(best)), sum(map(fixed.__getitem__, best))))
    return found


def left_beside(cell: Cell) -> IntArray:
    """(C,) GPUs that stay free on each row's node."""
    if cell.supply.request.nodes.whole:
        return np.zeros(len(cell.units), dtype=np.int64)
    free = popcount(cell.supply.free[cell.units]).astype(np.int64)
    return np.asarray(free - cell.split.per_node)


def least_totals(cell: Cell) -> IntArray | int:
    """(C,) least sum of scores of ``per_node`` slots of each row; one number if all are equal."""
    per_node, whole = cell.split.per_node, cell.supply.request.nodes.whole
    if cell.bound_index == 0 and not whole:  # all GPUs of the cell have the lowest score
        return cell.supply.table.least_fixed * per_node
    allowed = cell.allowed
    if whole:
        return np.asarray(np.where(allowed, fixed_scores(cell), 0).sum(axis=1))
    fixed = np.where(allowed, fixed_scores(cell), np.iinfo(np.int64).max >> 8)
    if per_node < fixed.shape[1]:
        fixed.partition(per_node - 1, axis=1)
    return np.asarray(fixed[:, :per_node].sum(axis=1))


def load_of_groups(cell: Cell) -> FloatArray:
    """(groups,) free GPUs of each group of the cell's level."""
    group, free = cell.level.group, popcount(cell.supply.free)
    known = cell.level.known
    if known is not None:
        group, free = group[known], free[known]
    load = np.bincount(group, weights=free, minlength=cell.level.groups)
    return load.astype(np.float64, copy=False)


def groups_of(cell: Cell) -> IntArray:
    """Numbers of the groups that hold a set of the cell, ascending."""
    fine = fitting_groups(cell.supply, cell.level, cell.split, cell.units, cell.masks)
    return np.flatnonzero(fine)


def top_rows(group: IntArray, order: IntArray, numbers: IntArray, count: int) -> IntArray:
    """(G, count) the first ``count`` rows of each of these groups.

    ``group``: (C,) group of each row. ``order``: rows, best first. ``numbers``: (G,) ascending
    groups, each with at least ``count`` rows in ``order``.
    """
    by_group = order[group[order].argsort(kind="stable")]
    starts = group[by_group].searchsorted(numbers)
    return np.asarray(by_group[starts[:, None] + np.arange(count)])


def best_first(numbers: IntArray, load: FloatArray, *least: FloatArray) -> Iterator[Candidate]:
    """Groups by their least possible key, with this key.

    ``numbers``: (G,) groups. ``load``: (groups,) free GPUs of every group; of equal groups the
    emptiest comes last. ``least``: (G,) lower bounds of the parts of the key, in order.
    """
    columns = (*least, load[numbers], numbers)
    for at in np.lexsort(columns[::-1]).tolist():
        yield tuple(column.item(at) for column in columns), int(numbers[at])
