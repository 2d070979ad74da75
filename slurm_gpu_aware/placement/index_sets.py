"""Index sets that nodes have in common: what Slurm's one GRES line for all nodes allows.

Up to 20 slots per node every index set is counted; beyond, the search grows sets slot by slot and
gives up a set as soon as too few nodes have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from slurm_gpu_aware.cluster import BoolArray, IntArray
from slurm_gpu_aware.placement.feasible import Split, Supply
from slurm_gpu_aware.placement.tables import LevelView, MaskArray, sets_of

__all__ = ["even_groups", "lowest_common", "required_ok", "supports", "words_of_cut"]

_SUPPORT_SIZE = 1 << 22  # entries of one support table: bounds the memory of the exact search
_FEW_PAIRS = 1 << 12  # index sets x nodes that are compared one by one rather than counted
_EXACT_WIDTH = 20  # slots up to which all index sets are counted
_MOST_SETS = 1 << 12  # index sets of wider nodes that are offered, the lowest ones
_MOST_STEPS = 1 << 14  # prefixes that the search on wider nodes tries before it gives up


def required_ok(supply: Supply, level: LevelView, nodes: IntArray) -> BoolArray:
    """(groups,) groups that hold all required nodes, each among the candidate rows."""
    fine = np.ones(level.groups, dtype=np.bool_)
    required = list(supply.request.required)
    if required:
        fine[:] = False
        groups = set(level.group[required].tolist())
        if len(groups) == 1 and bool(np.isin(required, nodes).all()):
            fine[groups.pop()] = True
    return fine


def even_groups(supply: Supply, level: LevelView, split: Split, nodes: IntArray) -> BoolArray:
    """(groups,) groups with enough candidate nodes."""
    counts = np.bincount(level.group[nodes], minlength=level.groups)
    return (counts >= split.nodes) & required_ok(supply, level, nodes)


def supports(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Index sets that enough nodes of one group have in common: the exact search.

    Yields, per group that has any, (group number, feasible index sets as masks in the order of
    :func:`sets_of`, number of nodes that hold each). The number of nodes whose mask contains a
    set is the superset sum of the histogram of masks: W vector additions over 2^W entries.

    Notes
    -----
    Exact up to 20 slots per node. Beyond, the lowest 4,096 index sets (:func:`lowest_common`).
    """
    if level.groups == 1 and not supply.request.required:
        numbers = np.zeros(1 if len(nodes) >= split.nodes else 0, dtype=np.int64)
    else:
        wanted = even_groups(supply, level, split, nodes)
        keep = wanted[level.group[nodes]]
        nodes, masks, numbers = nodes[keep], masks[keep], np.flatnonzero(wanted)
    if not len(numbers):
        return
    width = supply.cluster.shape[1]
    if width > _EXACT_WIDTH:
        common = _common_slots(supply, nodes, masks) & ((1 << 63) - 1)
        for number in numbers.tolist():
            own = masks[level.group[nodes] == number].astype(np.int64) & common
            wide, holders = lowest_common(own, split.per_node, split.nodes)
            if len(wide):
                yield number, wide, holders
        return
    sets = sets_of(width, split.per_node)
    if supply.request.required:
        sets = sets[(sets & _common_slots(supply, nodes, masks)) == sets]
    if level.groups == 1:
        if len(sets) * len(masks) <= _FEW_PAIRS:
            counts = np.count_nonzero((sets & ~masks.astype(np.int64)[:, None]) == 0, axis=0)
        else:
            counts = _superset_counts(0, masks, 1, width)[0][sets]
        found = np.flatnonzero(counts >= split.nodes)
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


def _common_slots(supply: Supply, nodes: IntArray, masks: MaskArray) -> int:
    """Slots that every required node has; all slots if none is required."""
    common = (1 << supply.cluster.shape[1]) - 1
    for node in supply.request.required:
        common &= int(masks[np.searchsorted(nodes, node)])
    return common


def _superset_counts(place: IntArray | int, masks: MaskArray, groups: int, width: int) -> IntArray:
    """(groups, 2^width): number of rows of the group whose mask contains each set."""
    flat = (place << width) | masks.astype(np.int64)
    table: IntArray = np.bincount(flat, minlength=groups << width)
    for slot in range(width):
        halves = table.reshape(-1, 2, 1 << slot)
        halves[:, 0] += halves[:, 1]
    return table.reshape(groups, -1)


def lowest_common(masks: IntArray, size: int, nodes: int) -> tuple[IntArray, IntArray]:
    """Index sets of ``size`` slots that at least ``nodes`` of the masks contain, the lowest first.

    Returns
    -------
    (F,) sets and (F,) how many masks contain each; at most the lowest 4,096 sets.

    Notes
    -----
    Depth first over prefixes in ascending slots. A slot that fewer than ``nodes`` of the masks
    with the prefix have leads nowhere, nor does a mask with too few slots that lead on. Finds a
    set if there is one, unless 16,384 prefixes were tried before.
    """
    distinct, count = np.unique(masks, return_counts=True)
    bits = ((distinct[:, None] >> np.arange(63)) & 1).astype(np.int64)
    sets: list[IntArray] = []
    holders: list[IntArray] = []
    stack = [(0, 0, np.arange(len(distinct)))]  # prefix, first slot that may follow, its masks
    steps = total = 0
    while stack and total < _MOST_SETS and steps < _MOST_STEPS:
        steps += 1
        prefix, first, rows = stack.pop()
        missing = size - prefix.bit_count()
        while True:
            having = count[rows] @ bits[rows]
            going = first + np.flatnonzero(having[first:] >= nodes)
            useful = bits[np.ix_(rows, going)].sum(axis=1) >= missing
            if useful.all():
                break
            rows = rows[useful]
        if len(going) < missing or not len(rows):
            continue
        if missing == 1:
            sets.append(np.int64(prefix) | (np.int64(1) << going))
            holders.append(having[going])
            total += len(going)
            continue
        stack.extend(
            (prefix | 1 << slot, slot + 1, rows[bits[rows, slot] == 1])
            for slot in going[: len(going) - missing + 1][::-1].tolist()
        )
    if not sets:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(sets)[:_MOST_SETS], np.concatenate(holders)[:_MOST_SETS]


def words_of_cut(found: Iterable[IntArray], width: int) -> str | None:
    """What of these groups' index sets was not offered, for the account; None: nothing."""
    if width > _EXACT_WIDTH and any(len(sets) >= _MOST_SETS for sets in found):
        return f"the lowest {_MOST_SETS} index sets compared"
    return None
