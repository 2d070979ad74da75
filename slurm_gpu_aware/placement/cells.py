"""Cells of the L x V matrix and the search for the first one that holds a set.

A cell is one locality level and one score bound; its candidates are the sets of GPUs in one group
of that level without a GPU above the bound. If a cell holds a set, so does one with a larger bound.
The search therefore bisects the bounds of each level; the first cell is the one with the smallest
product over all levels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.placement.feasible import Supply, fitting_groups
from slurm_gpu_aware.placement.index_sets import EXACT_WIDTH, some_support, supports
from slurm_gpu_aware.placement.level_views import (
    LevelView,
    MaskArray,
    every,
    popcount,
    some,
    unpack,
)
from slurm_gpu_aware.placement.shapes import Split


class Tried(NamedTuple):
    """A cell that the search tested."""

    level: LevelView
    bound_index: int
    found: bool  # The cell holds a set.


@dataclass(frozen=True, eq=False)
class Cell:
    """A feasible cell, and the candidate rows for a choice inside it.

    A set of the cell is, by ``split``:

    - one node (``split.nodes == 1``): ``split.per_node`` slots of one row of ``allowed``;
    - several nodes, ``split.same_slots``: the same slots of ``split.nodes`` rows of one ``group``;
    - several nodes, not ``same_slots``: any ``split.per_node`` slots of each of these rows;
    - ``split.uneven``: ``gpus`` slots of rows of one group, node counts as in the request;
    - ``--exclusive`` (``request.nodes.whole``): all slots of the rows.

    For PAL all sets of a cell are equal: same level, same worst score.
    """

    supply: Supply
    level: LevelView
    bound_index: int
    split: Split
    tried: tuple[Tried, ...] = ()  # Cells that the search tested, in its order.
    part: tuple[IntArray, MaskArray] | None = None
    """``units`` and ``masks`` of a part of the cell; None: the whole cell."""
    units: IntArray = field(init=False)
    """(C,) node index of each candidate row; at levels below the node a node has several rows."""
    masks: MaskArray = field(init=False)  # (C,) candidate GPUs of each row as bit masks.

    def __post_init__(self) -> None:
        part = self.part
        if part is None:
            part = _rows(self.supply, self.level, self.split, self.bound_index)
        units, masks = part
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "masks", masks)

    @property
    def score(self) -> float:
        """V of the cell: the largest score of its GPUs."""
        return float(self.supply.table.values[self.bound_index])

    @property
    def allowed(self) -> BoolArray:
        """(C, W) candidate GPUs of each row."""
        return unpack(self.masks, self.supply.cluster.shape[1])

    @property
    def group(self) -> IntArray:
        """(C,) group number of each row at the cell's level."""
        return self.level.group[self.units]


def first_cell(
    supply: Supply,
    levels: Sequence[LevelView],
    choices: Sequence[Split],
    below: float = math.inf,
) -> Cell | None:
    """Return the feasible cell of the smallest product, or None if no product is less than `below`.

    Of equal products the tighter level wins; within the cell, the split with the fewest nodes.
    """
    best: tuple[LevelView, int, Split] | None = None
    least = below
    values = supply.table.values
    smallest = values.item(0)
    tried: list[Tried] = []
    for level in levels:
        if level.penalty * smallest >= least:
            continue  # only a strictly smaller product beats a tighter level
        fitting = [s for s in choices if _spans(level, s)]
        if not fitting:
            continue
        limit = len(values)
        if least < math.inf:
            limit = int((level.penalty * values).searchsorted(least, side="left"))
        found = smallest_bound(supply, level, fitting, limit, tried)
        if found is not None:
            index, split = found
            best, least = (level, index, split), level.penalty * values.item(index)
    if best is None:
        return None
    return Cell(supply, *best, tried=tuple(tried))


def smallest_bound(
    supply: Supply, level: LevelView, choices: Sequence[Split], limit: int, tried: list[Tried]
) -> tuple[int, Split] | None:
    """Return the smallest bound below ``limit`` with a set in its cell, and its first split.

    Galloping and bisection. Tested cells are appended to ``tried``.
    """

    def first(index: int) -> Split | None:
        fitting = next((split for split in choices if holds(supply, level, split, index)), None)
        tried.append(Tried(level, index, fitting is not None))
        return fitting

    low, high, step = -1, 0, 1
    found = first(0) if limit > 0 else None
    while found is None:
        low, high, step = high, min(high + step, limit - 1), step * 2
        if high <= low:
            return None
        found = first(high)
    while high - low > 1:
        middle = (low + high) // 2
        split = first(middle)
        if split is None:
            low = middle
        else:
            high, found = middle, split
    return high, found


def holds(supply: Supply, level: LevelView, split: Split, index: int) -> bool:
    """Say whether the cell (level, ``values[index]``) has a set for this split."""
    key = ("holds", level, split, index)
    known: bool | None = supply.memo.get(key)
    if known is None:
        known = supply.memo[key] = _holds(supply, level, split, index)
    return known


def _holds(supply: Supply, level: LevelView, split: Split, index: int) -> bool:
    nodes, rows = _rows(supply, level, split, index)
    if split.nodes == 1:
        return len(nodes) > 0
    if not split.same_slots:
        return some(fitting_groups(supply, level, split, nodes, rows))
    if level.groups > 1 or supply.cluster.shape[1] > EXACT_WIDTH:
        return some_support(supply, level, split, nodes, rows)
    found = supply.memo[("supports", level, split, index)] = dict(
        supports(supply, level, split, nodes, rows)
    )
    return bool(found)


def supports_of(cell: Cell) -> dict[int, IntArray]:
    """All of :func:`supports` for a cell, from the search if it computed them."""
    known: dict[int, IntArray] | None = None
    if cell.part is None:
        known = cell.supply.memo.get(("supports", cell.level, cell.split, cell.bound_index))
    if known is None:
        known = dict(supports(cell.supply, cell.level, cell.split, cell.units, cell.masks))
    return known


def _spans(level: LevelView, split: Split) -> bool:
    return level.any_span or (level.one_node == (split.nodes == 1))


def _parts(supply: Supply, level: LevelView, masks: MaskArray, per_node: int) -> MaskArray:
    """(N, J) candidate GPUs of each domain of a level below the node.

    For one GPU per node the first domain has also the GPUs without a known domain and, on plain
    nodes, all GPUs; otherwise plain nodes have none. With ``--exclusive`` a domain holds all GPUs.
    """
    assert level.domains is not None  # noqa: S101 - callers check
    parts: MaskArray = masks[:, None] & level.domains
    indexed = supply.cluster.indexed
    if supply.request.nodes.whole:
        return np.asarray(parts * (indexed[:, None] & (parts == masks[:, None])))
    if per_node == 1:
        parts[:, 0] |= masks & ~np.bitwise_or.reduce(level.domains, axis=1)
    if not every(indexed):
        parts[~indexed] = 0
        if per_node == 1:
            parts[~indexed, 0] = masks[~indexed]
    return parts


def _rows(supply: Supply, level: LevelView, split: Split, index: int) -> tuple[IntArray, MaskArray]:
    """Node and mask of each row that can be part of a set of the cell."""
    key = ("rows", level, split, index)
    known: tuple[IntArray, MaskArray] | None = supply.memo.get(key)
    if known is None:
        masks = supply.at_most(split, index)
        if split.nodes == 1 and level.domains is not None:
            parts = _parts(supply, level, masks, split.per_node)
            at = np.nonzero(popcount(parts) >= split.per_node)
            known = at[0], parts[at]
        else:
            enough = popcount(masks) >= max(split.per_node, 1)
            if not level.one_node and not level.any_span and level.known is not None:
                enough &= level.known
            nodes = enough.nonzero()[0]
            known = nodes, masks[nodes]
        supply.memo[key] = known
    return known
