"""Selection by scores: least variability, then best fit, then the lowest index.

All sets of a cell have the same worst score. Among them the least sum of scores wins (PAL: "least
variability"; integers of 1e-5, so that order does not matter), then the node with the fewest GPUs
left (best fit), then the lowest node and the lowest slots.

Selection by scores of the same slots on several nodes: index set and nodes together.

Slurm gives a job on several nodes the same slots on each, so index set and nodes are chosen
together from one array, with a row per index set that enough nodes have and a column per node.
"""

from collections.abc import Iterable
from math import comb
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell, supports_of
from slurm_gpu_aware.placement.feasible import widest_nodes
from slurm_gpu_aware.placement.index_sets import words_of_cut
from slurm_gpu_aware.placement.level_views import MaskArray, popcount, unpack
from slurm_gpu_aware.placement.selection.base import (
    MOST_CONSIDERED,
    SUM_WEIGHT,
    Candidate,
    Choice,
    Considered,
    GroupKey,
    Selection,
    best_first,
    best_slots,
    fixed_scores,
    groups_of,
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
    for bound, number in _promising_sets(cell, sorted(found), left):
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


def _promising_sets(cell: Cell, numbers: list[int], left: IntArray) -> Iterable[Candidate]:
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
    if cell.bound_index > 0 or cell.supply.request.nodes.required:
        return rows
    order = np.lexsort((rows.left, rows.masks))
    masks, left = rows.masks[order], rows.left[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (masks[1:] != masks[:-1]) | (left[1:] != left[:-1])
    place = np.arange(len(order)) - np.flatnonzero(new)[np.cumsum(new) - 1]
    return _some(rows, np.sort(order[place < cell.split.nodes]))


def _best_set(cell: Cell, sets: IntArray, rows: _Rows, best_fit: bool) -> _Best:
    """The best of these index sets on the best of these rows; on ties the lowest."""
    count, required = cell.split.nodes, cell.supply.request.nodes.required
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


class ByScores(Selection):
    """The least sum of scores. ``best_fit`` False: first fit (lowest node)."""

    def __init__(self, *, best_fit: bool = True) -> None:
        self.best_fit = best_fit

    def one_node(self, cell: Cell) -> Choice:
        units = cell.units
        counts = popcount(cell.masks).astype(np.int64)
        if len(units) == 1 or not self.best_fit:
            rows, ties = [0], len(units)
        else:
            # After the GPUs left on the node, the candidates left: larger rows stay whole.
            key = least_totals(cell) * SUM_WEIGHT + (left_beside(cell) * 128 + counts)
            rows = _least(key, MOST_CONSIDERED)
            ties = int(np.count_nonzero(key == key.item(rows[0])))
        considered = [
            Considered(node, chosen, 1e-5 * summed / max(len(chosen), 1))
            for node, (chosen, summed) in zip(
                units[rows].tolist(), best_slots(cell, rows, cell.split.per_node), strict=True
            )
        ]
        best = considered[0]
        sets = _count_sets(cell, counts)
        return Choice((best.node,), (best.slots,), sets, ties, tuple(considered))

    def even(self, cell: Cell) -> Choice:
        key = np.zeros(len(cell.units), dtype=np.int64)
        if self.best_fit:
            key += least_totals(cell) * SUM_WEIGHT + left_beside(cell)
        required = cell.supply.request.nodes.required
        if required:
            key[np.isin(cell.units, list(required))] -= 1 << 60
        group, fine = cell.group, groups_of(cell)
        top = top_rows(group, key.argsort(kind="stable"), fine, cell.split.nodes)
        which = 0
        if len(fine) > 1:
            which = int(np.lexsort((fine, load_of_groups(cell)[fine], key[top].sum(axis=1)))[0])
        last = key[top[which, -1]]
        chosen = np.sort(top[which])
        picked = best_slots(cell, chosen.tolist(), cell.split.per_node)
        return Choice(
            nodes=tuple(cell.units[chosen].tolist()),
            slots=tuple(slots for slots, _ in picked),
            sets=None,
            ties=int(((key == last) & (group == fine[which])).sum()),
        )

    def same_indices(self, cell: Cell) -> Choice:
        return choose_same(cell, self.best_fit)

    def uneven(self, cell: Cell) -> Choice:
        request = cell.supply.request
        capacity = cell.supply.capacity(cell.units, cell.masks)
        best: tuple[GroupKey, IntArray, IntArray] | None = None
        for bound, number in _promising(cell, groups_of(cell)):
            if best is not None and best[0] < bound:
                break
            rows = np.flatnonzero((cell.group == number) & (capacity > 0))
            row_of, slot_of, fixed = _best_gpus(cell, rows, capacity[rows])
            most = request.max_nodes
            if most is not None and len(np.unique(row_of)) > most:
                required = request.nodes.required
                widest = widest_nodes(required, cell.units[rows], capacity[rows], most)
                rows = np.sort(rows[widest])
                row_of, slot_of, fixed = _best_gpus(cell, rows, capacity[rows])
            key = (float(fixed.sum()), *bound[1:])
            if best is None or key < best[0]:
                best = key, row_of, slot_of
        assert best is not None  # noqa: S101 - the cell holds a set
        _, row_of, slot_of = best
        used = np.unique(row_of)
        slots = tuple(tuple(sorted(slot_of[row_of == row].tolist())) for row in used)
        return Choice(tuple(cell.units[used].tolist()), slots, sets=None, ties=1)


def _least(key: IntArray, count: int) -> list[int]:
    """Positions of the ``count`` least keys in ascending order, the lowest position on ties."""
    if len(key) <= 64:
        order = key.argsort(kind="stable")[:count]
    else:
        bound = np.partition(key, count - 1)[count - 1]
        inside = np.flatnonzero(key < bound)
        near = np.concatenate([inside, np.flatnonzero(key == bound)[: count - len(inside)]])
        near.sort()
        order = near[key[near].argsort(kind="stable")]
    least: list[int] = order.tolist()
    return least


def _count_sets(cell: Cell, counts: IntArray) -> int:
    """Number of one-node sets in the cell; ``counts`` are the GPUs of each row."""
    if cell.supply.request.nodes.whole:
        return len(cell.units)
    rows = enumerate(np.bincount(counts).tolist())
    return sum(count * comb(size, cell.split.per_node) for size, count in rows)


def _promising(cell: Cell, fine: IntArray) -> Iterable[Candidate]:
    """Groups by the least sum of their best scores, on any nodes of the group."""
    if len(fine) == 1:
        return [((0.0, 0.0, 0.0), int(fine[0]))]
    gpus = cell.supply.request.gpus
    least = np.full(len(fine), float(gpus * cell.supply.table.least_fixed))
    if cell.bound_index > 0:  # otherwise all GPUs of the cell are equal
        row, slot = np.nonzero(cell.allowed)
        score, group = fixed_scores(cell)[row, slot], cell.group[row]
        least = score[top_rows(group, score.argsort(), fine, gpus)].sum(axis=1).astype(np.float64)
    return best_first(fine, load_of_groups(cell), least)


def _best_gpus(
    cell: Cell, rows: IntArray, capacity: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Row, slot and score of the job's GPUs: by score, then from the node with most candidates."""
    request = cell.supply.request
    fixed = fixed_scores(cell, rows)
    bits = unpack(cell.masks[rows], fixed.shape[1])
    order = np.argsort(np.where(bits, fixed, np.iinfo(np.int64).max), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    at, slot = np.nonzero(rank < capacity[:, None])
    score = fixed[at, slot]
    by_score = np.lexsort((slot, at, -capacity[at], score))
    chosen = by_score[: request.gpus]
    needed = [int(np.searchsorted(cell.units[rows], n)) for n in request.nodes.required]
    used = set(at[chosen].tolist())
    if len(used) < request.fewest_nodes or not used.issuperset(needed):
        chosen = _spread(by_score, at, needed, request.fewest_nodes, request.gpus)
    return rows[at[chosen]], slot[chosen], score[chosen]


def _spread(
    by_score: IntArray, at: IntArray, needed: list[int], fewest: int, gpus: int
) -> IntArray:
    """First the best GPU of each required node and of enough others, then the best of the rest."""
    first: dict[int, int] = {}
    for gpu in by_score.tolist():
        first.setdefault(int(at[gpu]), gpu)
    others = [row for row in first if row not in needed]
    spread = [first[row] for row in [*needed, *others][:fewest]]
    rest = [gpu for gpu in by_score.tolist() if gpu not in set(spread)]
    return np.array([*spread, *rest][:gpus], dtype=np.int64)
