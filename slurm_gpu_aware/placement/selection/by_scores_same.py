"""Selection by scores of the same slots on several nodes: index set and nodes together.

Slurm gives a job on several nodes the same slots on each, so index set and nodes are chosen
together from one array, with a row per index set that enough nodes have and a column per node.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell, supports_of
from slurm_gpu_aware.placement.index_sets import words_of_cut
from slurm_gpu_aware.placement.masks import unpack
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.groups import (
    Candidate,
    Walk,
    best_first,
    load_of_groups,
    top_rows,
)
from slurm_gpu_aware.placement.selection.score_rows import SUM_WEIGHT, least_totals, left_beside
from slurm_gpu_aware.topology.subsets import slots_of

__all__ = ["choose_same"]

_AT_ONCE = 1 << 22  # index sets x nodes in one array
_MOST_WORK = 1 << 26  # index sets x nodes compared in one group; the account reports a cut
_FEW = 1 << 9  # index sets x nodes up to which plain Python is faster than arrays
_MANY = 1 << 16  # index sets x nodes above which equal nodes are merged


class _Best(NamedTuple):
    """The best of some index sets, and its nodes."""

    value: float
    mask: int
    rows: IntArray
    ties: int


def choose_same(cell: Cell, best_fit: bool) -> Choice | None:
    """Return the index set and nodes with the least sum of scores, then the fewest GPUs left.

    Exact for groups of up to 2^26 pairs of an index set and a node (see ``Choice.cut``).
    """
    supply, count = cell.supply, cell.split.nodes
    found = {group: sets for group, sets, _ in supports_of(cell)}
    left = left_beside(cell) if best_fit else np.zeros(len(cell.units), dtype=np.int64)
    cut = words_of_cut(supply, found.values())
    chosen: _Best | None = None
    walk = Walk(_promising(cell, sorted(found), left))
    for bound, number in walk:
        rows = None if cell.level.groups == 1 else np.flatnonzero(cell.group == number)
        sets = found[number]
        if len(sets) * (len(left) if rows is None else len(rows)) > _MANY:
            rows = _different(cell, rows, left)
            most = max(1, _MOST_WORK // len(rows))
            if len(sets) > most:
                sets, cut = sets[:most], f"the lowest {most} index sets compared"
        own = _best_set(cell, sets, rows, left, best_fit)
        if walk.improves((own.value, *bound[1:])):
            chosen = own
    if chosen is None:
        return None
    slots, nodes = slots_of(chosen.mask), cell.units[chosen.rows]
    total = count * cell.split.per_node * supply.table.fixed_value(0)
    if cell.bound_index > 0:
        total = int(supply.table.fixed[nodes][:, list(slots)].sum())
    return Choice(
        nodes=tuple(nodes.tolist()),
        slots=(slots,) * count,
        total=total,
        candidates=len(cell.units),
        sets=sum(map(len, found.values())),
        ties=chosen.ties,
        cut=cut,
    )


def _promising(cell: Cell, numbers: list[int], left: IntArray) -> Iterable[Candidate]:
    """Groups, best nodes first, as if each node gave its own best set."""
    if len(numbers) == 1:
        return [((0.0, 0.0, 0.0), numbers[0])]
    key = left if cell.bound_index == 0 else least_totals(cell) * SUM_WEIGHT + left
    fine = np.array(numbers, dtype=np.int64)
    top = top_rows(cell.group, key.argsort(kind="stable"), fine, cell.split.nodes)
    return best_first(fine, load_of_groups(cell), key[top].sum(axis=1).astype(np.float64))


def _different(cell: Cell, rows: IntArray | None, left: IntArray) -> IntArray:
    """Rows that can matter: of equal rows only the lowest, as many as the job has nodes.

    If all scores of the cell are equal, rows with the same GPUs and as many left are equal.
    """
    every = np.arange(len(left)) if rows is None else rows
    if cell.bound_index > 0 or cell.supply.request.required:
        return every
    masks, spare = cell.masks[every], left[every]
    order = np.lexsort((spare, masks))
    masks, spare = masks[order], spare[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (masks[1:] != masks[:-1]) | (spare[1:] != spare[:-1])
    place = np.arange(len(order)) - np.flatnonzero(new)[np.cumsum(new) - 1]
    return np.asarray(every[np.sort(order[place < cell.split.nodes])])


def _best_set(
    cell: Cell, sets: IntArray, rows: IntArray | None, left: IntArray, best_fit: bool
) -> _Best:
    """The best of these index sets on the best of these rows (None: all); on ties the lowest."""
    count = cell.split.nodes
    must: BoolArray | None = None
    if cell.supply.request.required:
        units = cell.units if rows is None else cell.units[rows]
        must = np.isin(units, list(cell.supply.request.required))
    pairs = len(sets) * (len(left) if rows is None else len(rows))
    if pairs <= _FEW and best_fit and must is None and cell.bound_index == 0:
        return _best_of_few(cell, sets, rows, left)
    best: _Best | None = None
    step = max(1, _AT_ONCE // (len(left) if rows is None else len(rows)))
    for start in range(0, len(sets), step):
        part = sets[start : start + step]
        key = _same_keys(cell, part, rows, left)
        values = _least_sums(key, count, must)
        which = int(values.argmin()) if best_fit else _first_nodes(key, count, must)
        value = values.item(which)
        ties = int(np.count_nonzero(values == value))
        if best is not None and value == best.value:
            best = best._replace(ties=best.ties + ties)
        by_key = key[which] if must is None else np.where(must, -1.0, key[which])
        order = by_key.argsort(kind="stable")[:count]
        order.sort()
        chosen = order if rows is None else rows[order]
        earlier = not best_fit and best is not None and tuple(chosen) < tuple(best.rows)
        if best is None or value < best.value or earlier:
            best = _Best(value, part.item(which), chosen, ties)
    assert best is not None  # noqa: S101 - every group has sets
    return best


def _best_of_few(cell: Cell, sets: IntArray, rows: IntArray | None, left: IntArray) -> _Best:
    """`_best_set` for equal scores: each set takes the nodes with the fewest GPUs left."""
    masks = cell.masks if rows is None else cell.masks[rows]
    spare = left if rows is None else left[rows]
    order = spare.argsort(kind="stable")
    ranked = list(zip(masks[order].tolist(), spare[order].tolist(), order.tolist(), strict=True))
    found: list[tuple[int, int, list[int]]] = []
    for one in sets.tolist():
        having = [(less, row) for mask, less, row in ranked if mask & one == one]
        having = having[: cell.split.nodes]
        found.append((sum([less for less, _ in having]), one, [row for _, row in having]))
    value = min(found, key=itemgetter(0))[0]
    ties = [each for each in found if each[0] == value]
    chosen = np.array(sorted(ties[0][2]), dtype=np.int64)
    return _Best(value, ties[0][1], chosen if rows is None else rows[chosen], len(ties))


def _first_nodes(key: FloatArray, count: int, must: BoolArray | None) -> int:
    """The index set (row of ``key``) that the first ``count`` nodes have, ``must`` included.

    Node by node, keep the sets that the lowest possible next node has.
    """
    has = np.isfinite(key)
    if must is not None:
        has, count = has[:, ~must], count - int(np.count_nonzero(must))
    alive = np.flatnonzero(has.sum(axis=1) >= count)
    for _ in range(count):
        nxt = has[alive].argmax(axis=1)
        alive = alive[nxt == nxt.min()]
        if len(alive) == 1:
            break
        has[alive, nxt.min()] = False
    return int(alive[0])


def _least_sums(key: FloatArray, count: int, must: BoolArray | None) -> FloatArray:
    """(F,) least sum of ``count`` keys of each row of ``key``, with those in ``must``."""
    if must is None:
        if count < key.shape[1]:
            key = np.partition(key, count - 1, axis=1)[:, :count]
        return np.asarray(key.sum(axis=1))
    sums, others = key[:, must].sum(axis=1), count - int(np.count_nonzero(must))
    return sums + _least_sums(key[:, ~must], others, None) if others else np.asarray(sums)


def _same_keys(cell: Cell, sets: IntArray, rows: IntArray | None, left: IntArray) -> FloatArray:
    """(F, R) sum of scores and GPUs left for each index set on each row; inf if a slot is missing.

    Whole numbers below 2^53, so floats and their fast product are exact.
    """
    masks, units = cell.masks, cell.units
    if rows is not None:
        masks, units, left = masks[rows], units[rows], left[rows]
    key: IntArray | FloatArray = left
    if cell.bound_index > 0:
        width = cell.supply.cluster.shape[1]
        member = unpack(sets.astype(np.uint64), width).astype(np.float64)
        fixed = cell.supply.table.fixed[units].astype(np.float64)
        key = left + (member @ fixed.T) * SUM_WEIGHT
    return np.where(sets[:, None] & ~masks.astype(np.int64), np.inf, key)
