"""Search for index sets that nodes of more than 20 slots have in common.

Each group first gets one set, grown by the slot that most of its nodes have. Then sets are searched
in ascending order within a fixed amount of work that all groups share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray

__all__ = ["Common", "common_sets", "grown_sets", "lowest_common"]

_MOST_SETS = 512  # index sets of one group in a result, the lowest ones
_MOST_WORK = 1 << 14  # work of one search, in masks
_PREFIX_WORK = 64  # work of one prefix, in masks


class Common(NamedTuple):
    """Index sets of one group, the lowest first."""

    sets: IntArray
    holders: IntArray
    """Number of masks that contain each set."""
    complete: bool
    """There are no other sets."""
    work: int


def common_sets(
    masks: IntArray, group: IntArray, groups: int, size: int, nodes: int
) -> Iterator[tuple[int, Common]]:
    """Yield per group (number, sets of ``size`` slots that at least ``nodes`` masks contain).

    The remaining work is divided equally among the remaining groups.
    """
    grown, grown_holders = grown_sets(masks, group, groups, size)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(groups + 1))
    left = _MOST_WORK
    for number in range(groups):
        own = masks[order[starts[number] : starts[number + 1]]]
        found = lowest_common(own, size, nodes, left // (groups - number))
        left -= found.work
        extra = grown[number]
        if grown_holders[number] >= nodes and extra not in found.sets:
            # The search ended before this set, so the set comes last.
            sets = np.append(found.sets, extra)
            found = found._replace(
                sets=sets, holders=np.append(found.holders, grown_holders[number])
            )
        yield number, found


def grown_sets(
    masks: IntArray, group: IntArray, groups: int, size: int
) -> tuple[IntArray, IntArray]:
    """(G,) a set of ``size`` slots per group, and the number of its masks that contain the set.

    The set takes the slot that most masks of the group have, then the one that most of these have,
    and so on.
    """
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


def lowest_common(masks: IntArray, size: int, nodes: int, most_work: int = _MOST_WORK) -> Common:
    """Index sets of ``size`` slots that at least ``nodes`` of the masks contain, the lowest first.

    Notes
    -----
    Depth first over prefixes in ascending slots. The search skips slots that fewer than ``nodes``
    of the masks with the prefix have, and masks with too few other slots. It ends at 512 sets or
    at ``most_work``.
    """
    distinct, count = np.unique(masks, return_counts=True)
    bits, weight = _bits(distinct), count.astype(np.float64)
    sets: list[IntArray] = []
    holders: list[IntArray] = []
    stack = [(0, 0, np.arange(len(distinct)))]  # prefix, first slot that may follow, its masks
    work = total = 0
    while stack and total < _MOST_SETS and work < most_work:
        prefix, first, rows = stack.pop()
        missing = size - prefix.bit_count()
        while True:
            work += _PREFIX_WORK + len(rows)
            own = bits[rows]
            having = weight[rows] @ own
            going = first + np.flatnonzero(having[first:] >= nodes)
            useful = own[:, going].sum(axis=1) >= missing
            if useful.all():
                break
            rows = rows[useful]
        if len(going) < missing or not len(rows):
            continue
        if missing == 1:
            sets.append(np.int64(prefix) | (np.int64(1) << going))
            holders.append(having[going].astype(np.int64))
            total += len(going)
            continue
        stack.extend(
            (prefix | 1 << slot, slot + 1, rows[own[:, slot] == 1.0])
            for slot in going[: len(going) - missing + 1][::-1].tolist()
        )
    complete = not stack and total <= _MOST_SETS
    if not sets:
        none = np.zeros(0, dtype=np.int64)
        return Common(none, none, complete, work)
    return Common(
        np.concatenate(sets)[:_MOST_SETS], np.concatenate(holders)[:_MOST_SETS], complete, work
    )


def _bits(masks: IntArray) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """(n, W) slots of the masks, up to the highest slot of any mask."""
    width = max(int(np.bitwise_or.reduce(masks, initial=0)).bit_length(), 1)
    return ((masks[:, None] >> np.arange(width)) & 1).astype(np.float64)
