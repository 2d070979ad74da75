"""Index sets that several nodes have in common, as Slurm's one GRES line per job needs.

Up to 20 slots per node every index set is counted; above, ``wide_sets`` searches for some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.fit import fitting_groups
from slurm_gpu_aware.placement.level_views import LevelView
from slurm_gpu_aware.placement.masks import MaskArray, sets_of
from slurm_gpu_aware.placement.shapes import Split
from slurm_gpu_aware.placement.wide_sets import common_sets, grown_sets

__all__ = [
    "EXACT_WIDTH",
    "some_support",
    "supports",
    "words_of_cut",
]

_SUPPORT_SIZE = 1 << 22  # entries of one support table, to bound memory
_TABLE_WIDTH = 8  # slots up to which a product with a small table counts all index sets
_FEW_PAIRS = 1 << 12  # index sets x nodes up to which pairs are compared directly
EXACT_WIDTH = 20  # slots up to which all index sets are counted


def supports(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Index sets that enough nodes of one group have in common: the exact search.

    Yields, per group that has any, (group number, feasible index sets as masks in the order of
    :func:`sets_of`, number of nodes that hold each). The number of nodes that hold a
    set is the superset sum of the histogram of masks: W vector additions over 2^W entries.

    Notes
    -----
    Exact up to 20 slots per node. Above, the search may end early (``supply.sets_cut``).
    """
    nodes, masks, numbers = _able(supply, level, split, nodes, masks)
    if not len(numbers):
        return
    width = supply.cluster.shape[1]
    if width > EXACT_WIDTH:
        own, group = _wide(supply, level, nodes, masks, numbers)
        for nth, wide in common_sets(own, group, len(numbers), split.per_node, split.nodes):
            supply.sets_cut |= not wide.complete
            if len(wide.sets):
                yield int(numbers[nth]), wide.sets, wide.holders
        return
    sets = sets_of(width, split.per_node)
    if supply.request.required:
        sets = sets[(sets & _common_slots(supply, nodes, masks)) == sets]
    if level.groups == 1:
        if width <= _TABLE_WIDTH and not supply.request.required:
            counts = np.bincount(masks, minlength=1 << width) @ _subset_table(width, split.per_node)
        elif len(sets) * len(masks) <= _FEW_PAIRS:
            counts = ((sets & ~masks.astype(np.int64)[:, None]) == 0).sum(axis=0)
        else:
            counts = _superset_counts(0, masks, 1, width)[0][sets]
        found = (counts >= split.nodes).nonzero()[0]
        if len(found):
            yield 0, sets[found], counts[found]
        return
    chunk = max(1, _SUPPORT_SIZE >> width)
    for start in range(0, len(numbers), chunk):
        part = numbers[start : start + chunk]
        place = np.searchsorted(part, level.group[nodes])
        at = np.minimum(place, len(part) - 1)
        inside = part[at] == level.group[nodes]
        table = _superset_counts(at[inside], masks[inside], len(part), width)[:, sets]
        for row in np.flatnonzero((table >= split.nodes).any(axis=1)):
            found = np.flatnonzero(table[row] >= split.nodes)
            yield int(part[row]), sets[found], table[row, found]


def some_support(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> bool:
    """Say whether :func:`supports` yields anything; on wide nodes try a shorter search first."""
    if supply.cluster.shape[1] > EXACT_WIDTH:
        able, own, numbers = _able(supply, level, split, nodes, masks)
        if len(numbers):
            wide, group = _wide(supply, level, able, own, numbers)
            _, holders = grown_sets(wide, group, len(numbers), split.per_node)
            if bool((holders >= split.nodes).any()):
                return True
    return next(supports(supply, level, split, nodes, masks), None) is not None


def _able(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> tuple[IntArray, MaskArray, IntArray]:
    """Nodes and masks in groups with enough nodes, and the numbers of these groups."""
    if level.groups == 1 and not supply.request.required:
        numbers = np.zeros(1 if len(nodes) >= split.nodes else 0, dtype=np.int64)
        return nodes, masks, numbers
    wanted = fitting_groups(supply, level, split, nodes, masks)
    keep = wanted[level.group[nodes]]
    return nodes[keep], masks[keep], np.flatnonzero(wanted)


def _wide(
    supply: Supply, level: LevelView, nodes: IntArray, masks: MaskArray, numbers: IntArray
) -> tuple[IntArray, IntArray]:
    """Masks restricted to common slots, and the position of each group in ``numbers``."""
    common = _common_slots(supply, nodes, masks) & ((1 << 63) - 1)  # sets are signed
    return masks.astype(np.int64) & common, np.searchsorted(numbers, level.group[nodes])


def _common_slots(supply: Supply, nodes: IntArray, masks: MaskArray) -> int:
    """Slots that all required nodes have; all slots without required nodes."""
    common = (1 << supply.cluster.shape[1]) - 1
    for node in supply.request.required:
        common &= int(masks[np.searchsorted(nodes, node)])
    return common


@cache
def _subset_table(width: int, size: int) -> IntArray:
    """(2^width, sets) 1 where the mask contains the set; sets in the order of :func:`sets_of`."""
    masks = np.arange(1 << width)[:, None]
    return np.where(sets_of(width, size) & ~masks == 0, 1, 0)


def _superset_counts(place: IntArray | int, masks: MaskArray, groups: int, width: int) -> IntArray:
    """(groups, 2^width): number of masks of the group that contain each set."""
    flat = (place << width) | masks.astype(np.int64)
    table: IntArray = np.bincount(flat, minlength=groups << width)
    for slot in range(width):
        halves = table.reshape(-1, 2, 1 << slot)
        halves[:, 0] += halves[:, 1]
    return table.reshape(groups, -1)


def words_of_cut(supply: Supply, found: Iterable[IntArray]) -> str | None:
    """Words for the account if the search ended early; else None."""
    if not supply.sets_cut:
        return None
    return (
        f"the search on nodes of more than {EXACT_WIDTH} slots ended early: "
        f"{sum(map(len, found))} index sets compared"
    )
