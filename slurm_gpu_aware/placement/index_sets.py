"""Index sets that several nodes have in common, as Slurm's one GRES line per job needs.

Up to 20 slots per node every index set is counted. Above, each group first gets one set, grown by
the slot that most of its nodes have; then sets are searched in ascending order within a fixed
amount of work that all groups share.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.placement.feasible import Supply, fitting_groups
from slurm_gpu_aware.placement.level_views import LevelView, MaskArray, sets_of, superset_counts
from slurm_gpu_aware.placement.shapes import Split

EXACT_WIDTH = 20  # slots up to which all index sets are counted
_SUPPORT_SIZE = 1 << 22  # entries of one support table, to bound memory
_FEW_PAIRS = 1 << 12  # index sets x nodes up to which pairs are compared directly
_MOST_SETS = 512  # index sets of one group of wide nodes in a result, the lowest ones
_MOST_WORK = 1 << 14  # work of one search on wide nodes, in masks
_PREFIX_WORK = 64  # work of one prefix, in masks


def supports(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> Iterator[tuple[int, IntArray]]:
    """Yield, per group that has any, (group number, index sets that enough of its nodes share).

    Sets are masks in the order of :func:`sets_of`. Exact up to 20 slots per node; above, the search
    may end early (``supply.sets_cut``).
    """
    nodes, masks, numbers = _able(supply, level, split, nodes, masks)
    if not len(numbers):
        return
    width = supply.cluster.shape[1]
    if width > EXACT_WIDTH:
        own, group = _wide(supply, level, nodes, masks, numbers)
        for nth, wide in _common_sets(own, group, len(numbers), split.per_node, split.nodes):
            supply.sets_cut |= not wide.complete
            if len(wide.sets):
                yield int(numbers[nth]), wide.sets
        return
    sets = sets_of(width, split.per_node)
    if supply.request.nodes.required:
        sets = sets[(sets & _common_slots(supply, nodes, masks)) == sets]
    if level.groups == 1:
        if len(sets) * len(masks) <= _FEW_PAIRS:
            counts = ((sets & ~masks.astype(np.int64)[:, None]) == 0).sum(axis=0)
        else:
            counts = superset_counts(0, masks, 1, width)[0][sets]
        found = (counts >= split.nodes).nonzero()[0]
        if len(found):
            yield 0, sets[found]
        return
    chunk = max(1, _SUPPORT_SIZE >> width)
    for start in range(0, len(numbers), chunk):
        part = numbers[start : start + chunk]
        place = np.searchsorted(part, level.group[nodes])
        at = np.minimum(place, len(part) - 1)
        inside = part[at] == level.group[nodes]
        table = superset_counts(at[inside], masks[inside], len(part), width)[:, sets]
        for row in np.flatnonzero((table >= split.nodes).any(axis=1)):
            yield int(part[row]), sets[np.flatnonzero(table[row] >= split.nodes)]


def some_support(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> bool:
    """Say whether :func:`supports` yields anything; on wide nodes try a shorter search first."""
    if supply.cluster.shape[1] > EXACT_WIDTH:
        able, own, numbers = _able(supply, level, split, nodes, masks)
        if len(numbers):
            wide, group = _wide(supply, level, able, own, numbers)
            _, holders = _grown_sets(wide, group, len(numbers), split.per_node)
            if bool((holders >= split.nodes).any()):
                return True
    return next(supports(supply, level, split, nodes, masks), None) is not None


def words_of_cut(supply: Supply, found: Iterable[IntArray]) -> str | None:
    """Words for the account if the search ended early; else None."""
    if not supply.sets_cut:
        return None
    return (
        f"the search on nodes of more than {EXACT_WIDTH} slots ended early: "
        f"{sum(map(len, found))} index sets compared"
    )


def _able(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> tuple[IntArray, MaskArray, IntArray]:
    """Nodes and masks in groups with enough nodes, and the numbers of these groups."""
    if level.groups == 1 and not supply.request.nodes.required:
        numbers = np.zeros(1 if len(nodes) >= split.nodes else 0, dtype=np.int64)
        return nodes, masks, numbers
    wanted = fitting_groups(supply, level, split, nodes, masks)
    keep = wanted[level.group[nodes]]
    return nodes[keep], masks[keep], np.flatnonzero(wanted)


def _common_slots(supply: Supply, nodes: IntArray, masks: MaskArray) -> int:
    """Slots that all required nodes have; all slots without required nodes."""
    common = (1 << supply.cluster.shape[1]) - 1
    for node in supply.request.nodes.required:
        common &= int(masks[np.searchsorted(nodes, node)])
    return common


def _wide(
    supply: Supply, level: LevelView, nodes: IntArray, masks: MaskArray, numbers: IntArray
) -> tuple[IntArray, IntArray]:
    """Masks restricted to common slots, and the position of each group in ``numbers``."""
    common = _common_slots(supply, nodes, masks) & ((1 << 63) - 1)  # sets are signed
    return masks.astype(np.int64) & common, np.searchsorted(numbers, level.group[nodes])


class _Common(NamedTuple):
    """Index sets of one group of wide nodes, the lowest first."""

    sets: IntArray
    complete: bool  # There are no other sets.
    work: int


def _common_sets(
    masks: IntArray, group: IntArray, groups: int, size: int, nodes: int
) -> Iterator[tuple[int, _Common]]:
    """Yield per group (number, sets of ``size`` slots that at least ``nodes`` masks contain)."""
    grown, holders = _grown_sets(masks, group, groups, size)
    left = _MOST_WORK
    for number in range(groups):
        found = _lowest_common(masks[group == number], size, nodes, left // (groups - number))
        left -= found.work
        if holders[number] >= nodes and grown[number] not in found.sets:
            # The search ended before this set, so the set comes last.
            found = found._replace(sets=np.append(found.sets, grown[number]))
        yield number, found


def _grown_sets(
    masks: IntArray, group: IntArray, groups: int, size: int
) -> tuple[IntArray, IntArray]:
    """(G,) a set of ``size`` slots per group, the most common ones first, and how many hold it."""
    bits = _bits(masks)
    if bits.shape[1] < size:
        return np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    alive = np.ones(len(masks))
    taken = np.zeros((groups, bits.shape[1]), dtype=np.bool_)
    sets = np.zeros(groups, dtype=np.int64)
    order = np.argsort(group, kind="stable")
    bits, of_row = bits[order], group[order]
    starts = np.searchsorted(of_row, np.arange(groups))
    for _ in range(size):
        having = np.add.reduceat(bits * alive[:, None], starts, axis=0)
        having[taken] = -1.0
        slot = having.argmax(axis=1)
        taken[np.arange(groups), slot] = True
        sets |= np.int64(1) << slot
        alive *= bits[np.arange(len(bits)), slot[of_row]]
    return sets, np.add.reduceat(alive, starts).astype(np.int64)


def _lowest_common(masks: IntArray, size: int, nodes: int, most_work: int) -> _Common:
    """Index sets of ``size`` slots that at least ``nodes`` of the masks contain, the lowest first.

    Depth first over prefixes in ascending slots. The search skips slots that fewer than ``nodes``
    of the masks with the prefix have, and masks with too few other slots. It ends at 512 sets or
    at ``most_work``.
    """
    distinct, count = np.unique(masks, return_counts=True)
    bits, weight = _bits(distinct), count.astype(np.float64)
    sets: list[int] = []
    stack = [(0, 0, np.arange(len(distinct)))]  # prefix, first slot that may follow, its masks
    work = 0
    while stack and len(sets) < _MOST_SETS and work < most_work:
        prefix, first, rows = stack.pop()
        missing = size - prefix.bit_count()
        while True:
            work += _PREFIX_WORK + len(rows)
            own = bits[rows]
            going = first + np.flatnonzero((weight[rows] @ own)[first:] >= nodes)
            useful = own[:, going].sum(axis=1) >= missing
            if useful.all():
                break
            rows = rows[useful]
        if len(going) < missing or not len(rows):
            continue
        if missing == 1:
            sets += [prefix | 1 << slot for slot in going.tolist()]
            continue
        stack.extend(
            (prefix | 1 << slot, slot + 1, rows[own[:, slot] == 1.0])
            for slot in going[: len(going) - missing + 1][::-1].tolist()
        )
    complete = not stack and len(sets) <= _MOST_SETS
    return _Common(np.array(sets[:_MOST_SETS], dtype=np.int64), complete, work)


def _bits(masks: IntArray) -> FloatArray:
    """(n, W) slots of the masks, up to the highest slot of any mask."""
    width = max(int(np.bitwise_or.reduce(masks, initial=0)).bit_length(), 1)
    return ((masks[:, None] >> np.arange(width)) & 1).astype(np.float64)
