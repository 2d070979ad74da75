"""Selection by links of the same slots on several nodes: index set and nodes together.

Slurm gives a job one GRES line for all its nodes. For every index set that is free on enough nodes
(``cells.supports_of``) the nodes with its best links are taken; then the sets are compared. Nodes
of one kind are one entry with a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell, supports_of
from slurm_gpu_aware.placement.index_sets import words_of_cut
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.links import Goal, Kind, Kinds, table_values
from slurm_gpu_aware.placement.selection.rows import (
    Candidate,
    GroupKey,
    best_first,
    left_beside,
    load_of_groups,
    top_rows,
)
from slurm_gpu_aware.topology.subsets import MAX_EXACT, slots_of

_MOST_WORK = 1 << 22  # index sets x kinds of nodes of one group; the account reports a cut
_SIGNLESS = (1 << 63) - 1  # index sets are signed and never contain slot 63
_AGG_STEPS = 1024.0  # bandwidths are whole multiples of 1/1024 GB/s
_EFF_STEP = float(1 << 28)  # above any AggBW in those steps, so EffBW decides first


def choose_same(cell: Cell, kinds: Kinds, goal: Goal) -> Choice:
    """Return the best index set and nodes: by links, then best fit, then the lowest index.

    Exact for nodes of up to 16 GPUs and groups of up to 2^22 pairs of index set and kind.
    """
    found = dict(supports_of(cell))
    cuts = [words_of_cut(cell.supply, found.values())]
    members = {number: _members(cell, kinds, number) for number in found}
    cuts.append(_cut_to_work(found, members))
    graphs = [kind.graph for kind in kinds.each if kind.graph.n > MAX_EXACT]
    if goal.objective != "preserved" and not all(graph.is_uniform for graph in graphs):
        cuts.append(
            "index sets of nodes with more than 16 GPUs compared by the sum of all their links"
        )
    left = left_beside(cell)
    best: tuple[GroupKey, int, IntArray, int] | None = None
    for bound, number in _promising(cell, kinds, goal, found, left):
        if best is not None and best[0] < bound:
            break
        group, sets = members[number], found[number]
        values = _set_values(kinds, group.kinds, sets, goal)
        quality, spare = _compare(cell, goal, group, values, left)
        which = int(np.lexsort((spare, -quality))[0])
        key = (-float(quality[which]), float(spare[which]), *bound[2:])
        if best is None or key < best[0]:
            picked = _nodes_for(cell, goal, group, values[which], left)
            ties = int(((quality == quality[which]) & (spare == spare[which])).sum())
            best = key, int(sets[which]), picked, ties
    assert best is not None  # noqa: S101 - the cell holds a set
    _, mask, picked, ties = best
    return Choice(
        nodes=tuple(cell.units[picked].tolist()),
        slots=(slots_of(mask),) * len(picked),
        sets=sum(map(len, found.values())),
        ties=ties,
        cut="; ".join(words for words in cuts if words) or None,
    )


class _Members(NamedTuple):
    """The rows of one group."""

    rows: IntArray
    kinds: IntArray
    """Numbers of the kinds among them, ascending."""
    of_row: IntArray
    """Position of each row's kind in ``kinds``."""


def _members(cell: Cell, kinds: Kinds, number: int) -> _Members:
    if cell.level.groups == 1:
        return _Members(np.arange(len(kinds.of_row)), np.arange(len(kinds.each)), kinds.of_row)
    rows = np.flatnonzero(cell.group == number)
    present, of_row = np.unique(kinds.of_row[rows], return_inverse=True)
    return _Members(rows, present, of_row.reshape(-1))


def _cut_to_work(found: dict[int, IntArray], members: Mapping[int, _Members]) -> str | None:
    """Cut the index sets of each group to the limit, in place; return words for the account."""
    before = sum(map(len, found.values()))
    for number, sets in found.items():
        found[number] = sets[: max(1, _MOST_WORK // len(members[number].kinds))]
    after = sum(map(len, found.values()))
    return f"{after} of the {before} index sets compared" if after < before else None


def _promising(
    cell: Cell, kinds: Kinds, goal: Goal, found: Mapping[int, IntArray], left: IntArray
) -> Iterable[Candidate]:
    """Groups, best nodes first, as if each node gave its own best set."""
    numbers = sorted(found)
    if len(numbers) == 1:
        return [((0.0, 0.0, 0.0, 0.0), numbers[0])]
    fine, count, group = np.array(numbers, dtype=np.int64), cell.split.nodes, cell.group
    sets = np.unique(np.concatenate(list(found.values())))
    step = max(1, _MOST_WORK // len(sets))
    every = np.arange(len(kinds.each))
    parts = [every[start : start + step] for start in range(0, len(every), step)]
    best = [_set_values(kinds, part, sets, goal).max(axis=0) for part in parts]
    most = np.concatenate(best)[kinds.of_row]
    top = most[top_rows(group, (-most).argsort(kind="stable"), fine, count)]
    quality = top[:, -1] if goal.objective == "effbw" else top.sum(axis=1)
    spare = left[top_rows(group, left.argsort(kind="stable"), fine, count)].sum(axis=1)
    return best_first(fine, load_of_groups(cell), -quality, spare.astype(np.float64))


def _set_values(kinds: Kinds, which: IntArray, sets: IntArray, goal: Goal) -> FloatArray:
    """(F, U) value of each index set on each kind of node; -inf where the set is not free."""
    values = np.full((len(sets), len(which)), -np.inf)
    size = int(sets[0]).bit_count()
    for place, kind in enumerate(which.tolist()):
        inside = (sets & ~(kinds.each[kind].allowed & _SIGNLESS)) == 0
        if inside.any():
            values[inside, place] = _values_on(kinds.each[kind], sets[inside], size, goal)
    return values


def _values_on(kind: Kind, sets: IntArray, size: int, goal: Goal) -> FloatArray:
    graph = kind.graph
    if graph.n > MAX_EXACT and goal.objective != "preserved":
        # Too large for tables: the sum of all links of the set.
        bits = ((sets[:, None] >> np.arange(graph.n)) & 1).astype(np.float64)
        return np.asarray(((bits @ graph.gbps) * bits).sum(axis=1) / 2.0)
    first, second = table_values(graph, kind.free, sets, size, goal)
    if goal.objective != "effbw":
        return first
    # EffBW in steps of 0.001 GB/s, then AggBW: one number that sorts like the pair.
    return np.round(first * 1000.0) * _EFF_STEP + second * _AGG_STEPS


def _compare(
    cell: Cell, goal: Goal, group: _Members, values: FloatArray, left: IntArray
) -> tuple[FloatArray, FloatArray]:
    """(F,) value of the job on the best nodes for each index set, and GPUs left on them."""
    rows, _, of_row = group
    must = np.isin(cell.units[rows], list(cell.supply.request.required))
    others = cell.split.nodes - int(must.sum())
    number = values.shape[1]
    count = np.bincount(of_row[~must], minlength=number)
    spare_of = np.zeros(number)
    spare_of[of_row] = left[rows]
    fixed = values[:, of_row[must]]
    by_spare = np.argsort(spare_of, kind="stable")  # of equal kinds the fullest comes first
    count, spare_of, values = count[by_spare], spare_of[by_spare], values[:, by_spare]
    order = np.argsort(-values, axis=1, kind="stable")
    sorted_values = np.take_along_axis(values, order, axis=1)
    taken = _taken(count[order], others)
    spare = np.full(len(values), float(left[rows][must].sum()))
    if goal.objective == "effbw":
        used = np.where(taken > 0, sorted_values, np.inf).min(axis=1, initial=np.inf)
        worst = np.minimum(used, fixed.min(axis=1, initial=np.inf))
        good_enough = values >= worst[:, None]
        spare += _taken(np.where(good_enough, count, 0), others) @ spare_of
        return worst, spare
    part = np.where(taken > 0, sorted_values, 0.0)
    total = (part * taken).sum(axis=1) + fixed.sum(axis=1)
    return total, spare + (taken * spare_of[order]).sum(axis=1)


def _taken(count: IntArray, wanted: int) -> IntArray:
    """Number taken of each column if ``wanted`` are taken from left to right."""
    before = np.cumsum(count, axis=1) - count
    return np.asarray(np.clip(wanted - before, 0, count))


def _nodes_for(
    cell: Cell, goal: Goal, group: _Members, value: FloatArray, left: IntArray
) -> IntArray:
    """Rows for one index set, ascending."""
    rows, own = group.rows, value[group.of_row]
    optional = ~np.isin(cell.units[rows], list(cell.supply.request.required))
    count = cell.split.nodes
    if goal.objective == "effbw":
        # The worst node decides, so all nodes of at least its value are equal.
        order = np.lexsort((-own, optional))[:count]
        rows = rows[own >= own[order].min()]
        optional = ~np.isin(cell.units[rows], list(cell.supply.request.required))
        own = np.zeros(len(rows))
    order = np.lexsort((cell.units[rows], left[rows], -own, optional))[:count]
    return np.asarray(np.sort(rows[order]))
