"""Selection by scores of the same slots on several nodes: index set and nodes together.

Slurm gives a job on several nodes the same slots on each, so index set and nodes are chosen
together from one array, with a row per index set that enough nodes have and a column per node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell, supports_of
from slurm_gpu_aware.placement.index_sets import words_of_cut
from slurm_gpu_aware.placement.masks import MaskArray, unpack
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.rows import (
    SUM_WEIGHT,
    Candidate,
    GroupKey,
    best_first,
    least_totals,
    left_beside,
    load_of_groups,
    top_rows,
)
from slurm_gpu_aware.topology.subsets import slots_of

_AT_ONCE = 1 << 22  # index sets x nodes in one array
_MOST_WORK = 1 << 26  # index sets x nodes compared in one group; the account reports a cut
_MANY = 1 << 16  # index sets x nodes above which equal nodes are merged


class _Rows(NamedTuple):
    """Candidate rows of one group: nodes, free GPUs, and GPUs left on the nodes."""

    nodes: IntArray
    masks: MaskArray
    left: IntArray


class _Best(NamedTuple):
    """The best of some index sets, and its nodes."""

    value: float
    mask: int
    nodes: IntArray
    ties: int


def choose_same(cell: Cell, best_fit: bool) -> Choice:
    """Return the index set and nodes with the least sum of scores, then the fewest GPUs left.

    Exact for groups of up to 2^26 pairs of an index set and a node (see ``Choice.cut``).
    """
    found = supports_of(cell)
    left = left_beside(cell) if best_fit else np.zeros(len(cell.units), dtype=np.int64)
    every = _Rows(cell.units, cell.masks, left)
    cut = words_of_cut(cell.supply, found.values())
    best: tuple[GroupKey, _Best] | None = None
    for bound, number in _promising(cell, sorted(found), left):
        if best is not None and best[0] < bound:
            break
        rows, sets = every, found[number]
        if cell.level.groups > 1:
            rows = _some(every, np.flatnonzero(cell.group == number))
        if len(sets) * len(rows.nodes) > _MANY:
            rows = _different(cell, rows)
            most = max(1, _MOST_WORK // len(rows.nodes))
            if len(sets) > most:
                sets, cut = sets[:most], f"the lowest {most} index sets compared"
        own = _best_set(cell, sets, rows, best_fit)
        key = (own.value, *bound[1:])
        if best is None or key < best[0]:
            best = key, own
    assert best is not None  # noqa: S101 - the cell holds a set
    chosen = best[1]
    return Choice(
        nodes=tuple(chosen.nodes.tolist()),
        slots=(slots_of(chosen.mask),) * cell.split.nodes,
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


def _some(rows: _Rows, which: IntArray) -> _Rows:
    return _Rows(rows.nodes[which], rows.masks[which], rows.left[which])


def _different(cell: Cell, rows: _Rows) -> _Rows:
    """Rows that can matter: of equal rows only the lowest, as many as the job has nodes."""
    if cell.bound_index > 0 or cell.supply.request.required:
        return rows
    order = np.lexsort((rows.left, rows.masks))
    masks, left = rows.masks[order], rows.left[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (masks[1:] != masks[:-1]) | (left[1:] != left[:-1])
    place = np.arange(len(order)) - np.flatnonzero(new)[np.cumsum(new) - 1]
    return _some(rows, np.sort(order[place < cell.split.nodes]))


def _best_set(cell: Cell, sets: IntArray, rows: _Rows, best_fit: bool) -> _Best:
    """The best of these index sets on the best of these rows; on ties the lowest."""
    count, required = cell.split.nodes, cell.supply.request.required
    must = np.isin(rows.nodes, list(required)) if required else None
    best: _Best | None = None
    step = max(1, _AT_ONCE // len(rows.nodes))
    for start in range(0, len(sets), step):
        part = sets[start : start + step]
        key = _same_keys(cell, part, rows)
        values = _least_sums(key, count, must)
        which = int(values.argmin()) if best_fit else _first_nodes(key, count, must)
        value = values.item(which)
        ties = int(np.count_nonzero(values == value))
        if best is not None and value == best.value:
            best = best._replace(ties=best.ties + ties)
        by_key = key[which] if must is None else np.where(must, -1.0, key[which])
        order = by_key.argsort(kind="stable")[:count]
        order.sort()
        nodes = rows.nodes[order]
        earlier = not best_fit and best is not None and tuple(nodes) < tuple(best.nodes)
        if best is None or value < best.value or earlier:
            best = _Best(value, part.item(which), nodes, ties)
    assert best is not None  # noqa: S101 - every group has sets
    return best


def _first_nodes(key: FloatArray, count: int, must: BoolArray | None) -> int:
    """The index set (row of ``key``) that the first ``count`` nodes have, ``must`` included."""
    has = np.isfinite(key)
    if must is not None:
        has, count = has[:, ~must], count - int(np.count_nonzero(must))
    alive = np.flatnonzero(has.sum(axis=1) >= count)
    for _ in range(count):  # keep the sets that the lowest possible next node has
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


def _same_keys(cell: Cell, sets: IntArray, rows: _Rows) -> FloatArray:
    """(F, R) sum of scores and GPUs left per index set and row; inf if a slot is missing."""
    key: IntArray | FloatArray = rows.left
    # Whole numbers below 2^53, so floats and their fast product are exact.
    if cell.bound_index > 0:
        member = unpack(sets.astype(np.uint64), cell.supply.cluster.shape[1]).astype(np.float64)
        fixed = cell.supply.table.fixed[rows.nodes].astype(np.float64)
        key = rows.left + (member @ fixed.T) * SUM_WEIGHT
    return np.where(sets[:, None] & ~rows.masks.astype(np.int64), np.inf, key)
