"""The choice inside a cell: least variability, then best fit, then the lowest index.

All sets of a cell share the worst score. Among them the least sum of scores wins (PAL: "least
variability", summed in integers of 1e-5 so that order does not matter), then the node with the
fewest GPUs left (best fit), then the lowest node and the lowest slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.cluster import BoolArray, IntArray
from slurm_gpu_aware.placement.cells import (
    Cell,
    supports_of,
    uneven_capacity,
    uneven_groups,
    widest_nodes,
)
from slurm_gpu_aware.placement.same_slots import (
    SUM_WEIGHT,
    first_nodes,
    least_sums,
    same_keys,
)
from slurm_gpu_aware.placement.tables import popcount, unpack

__all__ = ["MOST_CONSIDERED", "Choice", "Considered", "choose"]

_MOST_GROUPS = 32  # groups (switches, racks) of which all sets are compared, fullest first
MOST_CONSIDERED = 5  # sets that an account lists; how many there were is always told
_MOST_WORK = 1 << 22  # index sets x nodes compared exactly; beyond, the lowest index set is taken


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs and how contested the choice was."""

    nodes: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    total: int
    """Sum of scores in units of 1e-5, for comparing splits."""
    candidates: int
    """Nodes (rows) that could take part."""
    sets: int | None
    """Candidate sets; None: not counted."""
    ties: int
    """Candidates as good by score and best fit; the lowest index decided among them."""
    considered: tuple[Considered, ...] = ()
    """The best sets of the best few nodes, the chosen one first; empty for several nodes."""


class Considered(NamedTuple):
    """A one-node set that was compared with others, for the account."""

    node: int
    slots: tuple[int, ...]
    value: float
    """What it was compared by: the mean score, or a bandwidth in GB/s."""


def choose(cell: Cell, *, best_fit: bool = True) -> Choice:
    """Return the cell's best set. ``best_fit`` False: first fit (lowest node) at once."""
    if cell.split.nodes == 1:
        return _choose_one(cell, best_fit)
    if cell.split.uneven:
        return _choose_uneven(cell)
    if cell.split.same_slots:
        return _choose_same(cell, best_fit)
    return _choose_even(cell, best_fit)


def _fixed(cell: Cell, rows: IntArray | slice = slice(None)) -> IntArray:
    """(C, W) scores of the rows; on plain nodes every free GPU counts as the worst of them."""
    supply = cell.supply
    nodes = cell.units[rows]
    fixed = supply.table.fixed[nodes]
    if not supply.cluster.indexed.all() and not supply.request.whole_node:
        plain = ~supply.cluster.indexed[nodes]
        bits = unpack(cell.masks[rows], fixed.shape[1])
        worst = np.where(bits, fixed, 0).max(axis=1)
        fixed = np.where(plain[:, None], worst[:, None], fixed)
    return fixed


def _take(cell: Cell, row: int, count: int) -> tuple[tuple[int, ...], int]:
    """The ``count`` best slots of a row (lowest index on ties) and their sum."""
    mask = int(cell.masks[row])
    slots = [s for s in range(mask.bit_length()) if mask >> s & 1]
    if cell.supply.request.whole_node:
        count = len(slots)
    if cell.bound_index == 0 and not cell.supply.request.whole_node:
        return tuple(slots[:count]), count * cell.supply.table.fixed_value(0)
    fixed = _fixed(cell, slice(row, row + 1))[0].tolist()
    slots = sorted(slots, key=fixed.__getitem__)[:count]
    return tuple(sorted(slots)), sum(fixed[s] for s in slots)


def _left(cell: Cell) -> IntArray:
    """(C,) GPUs that stay free on each row's node."""
    free = popcount(cell.supply.free[cell.units]).astype(np.int64)
    given = cell.split.per_node
    return np.zeros_like(free) if cell.supply.request.whole_node else free - given


def _totals(cell: Cell) -> IntArray | int:
    """(C,) least sum of scores of ``per_node`` slots of each row; one number if all are equal."""
    if cell.bound_index == 0 and not cell.supply.request.whole_node:
        # No GPU of the cell is better than its bound, so every set has the same sum.
        value = cell.supply.table.fixed_value(0)
        return value * cell.split.per_node
    per_node = cell.split.per_node
    allowed = cell.allowed
    if cell.supply.request.whole_node:
        sums: IntArray = np.where(allowed, _fixed(cell), 0).sum(axis=1)
        return sums
    fixed = np.where(allowed, _fixed(cell), np.iinfo(np.int64).max >> 8)
    if per_node < fixed.shape[1]:
        fixed.partition(per_node - 1, axis=1)
    least: IntArray = fixed[:, :per_node].sum(axis=1)
    return least


def _choose_one(cell: Cell, best_fit: bool) -> Choice:
    units = cell.units
    if len(units) == 1 or not best_fit:
        row, ties = 0, len(units)
        rows = [row]
    else:
        # After the GPUs left on the node, those left that are as good, so that these stay together.
        key = _totals(cell) * SUM_WEIGHT + (_left(cell) * 128 + popcount(cell.masks))
        rows = _least(key, MOST_CONSIDERED)
        row = rows[0]
        ties = int(np.count_nonzero(key == key[row]))
    taken = [_take(cell, each, cell.split.per_node) for each in rows]
    slots, total = taken[0]
    return Choice(
        nodes=(units.item(row),),
        slots=(slots,),
        total=total,
        candidates=len(units),
        sets=_count_sets(cell),
        ties=ties,
        considered=tuple(
            Considered(units.item(each), chosen, 1e-5 * summed / max(len(chosen), 1))
            for each, (chosen, summed) in zip(rows, taken, strict=True)
        ),
    )


def _least(key: IntArray, count: int) -> list[int]:
    """Positions of the ``count`` least keys in ascending order, the lowest position on ties."""
    if len(key) > 64:
        bound = np.partition(key, count - 1)[count - 1]
        inside = np.flatnonzero(key < bound)
        near = np.concatenate([inside, np.flatnonzero(key == bound)[: count - len(inside)]])
        near.sort()
        return [int(i) for i in near[key[near].argsort(kind="stable")]]
    return [int(i) for i in key.argsort(kind="stable")[:count]]


def _count_sets(cell: Cell) -> int:
    """Number of one-node sets in the cell."""
    if cell.supply.request.whole_node:
        return len(cell.units)
    per_node, width = cell.split.per_node, cell.supply.cluster.shape[1]
    if comb(width, per_node) * len(cell.units) >= 1 << 62:
        return sum(comb(size, per_node) for size in popcount(cell.masks).tolist())
    return int(_combinations(width, per_node)[popcount(cell.masks)].sum())


@cache
def _combinations(width: int, size: int) -> IntArray:
    """C(n, size) for n = 0..width."""
    return np.array([comb(n, size) for n in range(width + 1)], dtype=np.int64)


def _groups(cell: Cell, fine: IntArray) -> list[int]:
    """Groups to compare: those with the fewest free GPUs first, at most ``_MOST_GROUPS``."""
    if len(fine) == 1:
        return [int(fine[0])]
    free = popcount(cell.supply.free).astype(np.int64)
    known = cell.level.group >= 0
    load = np.bincount(cell.level.group[known], weights=free[known], minlength=cell.level.groups)
    order = np.lexsort((fine, load[fine]))[:_MOST_GROUPS]
    return [int(g) for g in fine[order]]


def _required(cell: Cell) -> BoolArray:
    """(C,) rows whose node the request names."""
    required = cell.supply.request.required
    if not required:
        return np.zeros(len(cell.units), dtype=np.bool_)
    return np.isin(cell.units, list(required))


def _choose_even(cell: Cell, best_fit: bool) -> Choice:
    count = cell.split.nodes
    key = np.zeros(len(cell.units), dtype=np.int64)
    if best_fit:
        key += _totals(cell) * SUM_WEIGHT + _left(cell)
    key[_required(cell)] -= 1 << 60
    group = cell.group
    fine = np.flatnonzero(np.bincount(group, minlength=cell.level.groups) >= count)
    required = cell.supply.request.required
    if required:
        fine = fine[fine == cell.level.group[required[0]]]
    best: tuple[int, IntArray] | None = None
    ties = 1
    for number in _groups(cell, fine):
        rows = np.flatnonzero(group == number)
        order = rows[np.argsort(key[rows], kind="stable")]
        value = int(key[order[:count]].sum())
        if best is None or value < best[0]:
            best = (value, np.sort(order[:count]))
            ties = int((key[rows] == key[order[count - 1]]).sum())
    if best is None:
        raise ValueError("the cell holds no set: it was not found feasible")
    picked = [_take(cell, int(row), cell.split.per_node) for row in best[1]]
    return Choice(
        nodes=tuple(int(cell.units[row]) for row in best[1]),
        slots=tuple(slots for slots, _ in picked),
        total=sum(total for _, total in picked),
        candidates=len(cell.units),
        sets=None,
        ties=ties,
    )


def _choose_same(cell: Cell, best_fit: bool) -> Choice:
    supply, count = cell.supply, cell.split.nodes
    found = {group: sets for group, sets, _ in supports_of(cell)}
    left = _left(cell) if best_fit else np.zeros(len(cell.units), dtype=np.int64)
    must = _required(cell) if supply.request.required else None
    best: tuple[float, int, IntArray] | None = None
    ties = 0
    for number, rows in _rows_of_groups(cell, sorted(found)):
        sets = found[number]
        size = len(left) if rows is None else len(rows)
        if len(sets) * size > _MOST_WORK:
            sets = sets[: max(1, _MOST_WORK // size)]
        key = same_keys(cell, sets, rows, left)
        own = must if must is None or rows is None else must[rows]
        values = least_sums(key, count, own)
        which = int(values.argmin()) if best_fit else first_nodes(key, count, own)
        value = float(values[which])
        if best is None or value < best[0]:
            by_key = key[which] if own is None else np.where(own, -1.0, key[which])
            order = by_key.argsort(kind="stable")[:count]
            best = (value, int(sets[which]), np.sort(order if rows is None else rows[order]))
            ties = int(np.count_nonzero(values == value))
    if best is None:
        raise ValueError("the cell holds no set: it was not found feasible")
    _, mask, chosen = best
    slots = tuple(s for s in range(supply.cluster.shape[1]) if mask >> s & 1)
    nodes = cell.units[chosen]
    total = count * cell.split.per_node * supply.table.fixed_value(0)
    if cell.bound_index > 0:
        total = int(supply.table.fixed[nodes][:, list(slots)].sum())
    return Choice(
        nodes=tuple(nodes.tolist()),
        slots=(slots,) * count,
        total=total,
        candidates=len(cell.units),
        sets=sum(len(s) for s in found.values()),
        ties=ties,
    )


def _rows_of_groups(cell: Cell, numbers: list[int]) -> Iterator[tuple[int, IntArray | None]]:
    """Groups to compare and the positions of their rows; None: all rows are in the one group."""
    if cell.level.groups == 1:
        yield numbers[0], None
        return
    group = cell.group
    for number in _groups(cell, np.array(numbers, dtype=np.int64)):
        yield number, np.flatnonzero(group == number)


def _choose_uneven(cell: Cell) -> Choice:
    """The best GPUs of a group wherever they are (PM-First), node counts within the request."""
    supply, request = cell.supply, cell.supply.request
    capacity = uneven_capacity(supply, cell.units, cell.masks)
    group = cell.group
    fine = np.flatnonzero(uneven_groups(supply, cell.level, cell.units, cell.masks))
    best: tuple[int, IntArray, IntArray] | None = None
    for number in _groups(cell, fine):
        rows = np.flatnonzero((group == number) & (capacity > 0))
        if request.max_nodes is not None:
            rows = _within_max(cell, rows, capacity)
        row_of, slot_of, fixed = _best_gpus(cell, rows, capacity[rows])
        total = int(fixed.sum())
        if best is None or total < best[0]:
            best = (total, row_of, slot_of)
    if best is None:
        raise ValueError("the cell holds no set: it was not found feasible")
    total, row_of, slot_of = best
    nodes = cell.units[row_of]
    used = np.unique(nodes)
    return Choice(
        nodes=tuple(int(n) for n in used),
        slots=tuple(tuple(sorted(int(s) for s in slot_of[nodes == n])) for n in used),
        total=total,
        candidates=len(cell.units),
        sets=None,
        ties=1,
    )


def _within_max(cell: Cell, rows: IntArray, capacity: IntArray) -> IntArray:
    """Rows to choose from when at most ``max_nodes`` nodes may be used."""
    request = cell.supply.request
    most = request.max_nodes if request.max_nodes is not None else len(rows)
    row_of, _, _ = _best_gpus(cell, rows, capacity[rows])
    if len(np.unique(row_of)) <= most:
        return rows
    return np.sort(rows[widest_nodes(request.required, cell.units[rows], capacity[rows], most)])


def _best_gpus(
    cell: Cell, rows: IntArray, capacity: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Row, slot and score of the job's GPUs, out of these rows.

    By score; on ties from the node with the most candidates, so that fewer nodes are used.
    """
    request = cell.supply.request
    masks = cell.masks[rows]
    width = cell.supply.cluster.shape[1]
    fixed = np.where(unpack(masks, width), _fixed(cell, rows), np.iinfo(np.int64).max)
    order = np.argsort(fixed, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    at, slot = np.nonzero(rank < capacity[:, None])
    score = fixed[at, slot]
    by_score = np.lexsort((slot, at, -capacity[at], score))
    fewest = max(request.min_nodes, len(request.required), 1)
    chosen = by_score[: request.gpus]
    needed = [int(np.searchsorted(cell.units[rows], n)) for n in request.required]
    if len(np.unique(at[chosen])) < fewest or not set(needed) <= set(at[chosen].tolist()):
        chosen = _spread(by_score, at, needed, fewest, request.gpus)
    return rows[at[chosen]], slot[chosen], score[chosen]


def _spread(
    by_score: IntArray, at: IntArray, needed: list[int], fewest: int, gpus: int
) -> IntArray:
    """First the best GPU of each required node and of as many others as must be, then the rest."""
    first: dict[int, int] = {}
    for gpu in by_score.tolist():
        first.setdefault(int(at[gpu]), gpu)
    others = [row for row in first if row not in set(needed)]
    spread = [first[row] for row in [*needed, *others][: max(fewest, len(needed))]]
    rest = [gpu for gpu in by_score.tolist() if gpu not in set(spread)]
    return np.array([*spread, *rest][:gpus], dtype=np.int64)
