"""Selection by links: MAPA's bandwidths, then best fit, then the lowest index.

On several nodes every node's part of the job is scored with the job's pattern on that part. The
value of the job is its worst part (``effbw``) or the sum of its parts (other objectives). Under
Slurm's constraint the index set and the nodes are searched together.

Selection by links of the same slots on several nodes: index set and nodes together.

Slurm gives a job one GRES line for all its nodes. For every index set that is free on enough nodes
(``cells.supports_of``) the nodes with its best links are taken; then the sets are compared. Nodes
of one kind are one entry with a count.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell, supports_of
from slurm_gpu_aware.placement.index_sets import words_of_cut
from slurm_gpu_aware.placement.level_views import popcount
from slurm_gpu_aware.placement.selection.base import (
    MOST_CONSIDERED,
    Candidate,
    Choice,
    Considered,
    GroupKey,
    Selection,
    best_first,
    groups_of,
    left_beside,
    load_of_groups,
    top_rows,
)
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.selection.links import (
    BestSet,
    Goal,
    Kind,
    Kinds,
    best_set,
    graph_of,
    kinds_of,
    table_values,
    worst_set,
)
from slurm_gpu_aware.topology.matching import exact_tables
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
    kinds: IntArray  # Numbers of the kinds among them, ascending.
    of_row: IntArray  # Position of each row's kind in ``kinds``.


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
    must = np.isin(cell.units[rows], list(cell.supply.request.nodes.required))
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
    optional = ~np.isin(cell.units[rows], list(cell.supply.request.nodes.required))
    count = cell.split.nodes
    if goal.objective == "effbw":
        # The worst node decides, so all nodes of at least its value are equal.
        order = np.lexsort((-own, optional))[:count]
        rows = rows[own >= own[order].min()]
        optional = ~np.isin(cell.units[rows], list(cell.supply.request.nodes.required))
        own = np.zeros(len(rows))
    order = np.lexsort((cell.units[rows], left[rows], -own, optional))[:count]
    return np.asarray(np.sort(rows[order]))


class ByLinks(Selection):
    """The best set by links. Exact for one node of up to 16 free GPUs."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal

    def one_node(self, cell: Cell) -> Choice:
        """Return the best set, on the node with the fewest GPUs left."""
        kinds = kinds_of(cell)
        best, cut = _best_of_kinds(cell, kinds, self.goal), _cut(kinds, self.goal)
        if len(cell.units) == 1:  # a single machine
            only = best[0]
            one = Considered(cell.units.item(0), slots_of(only.mask), only.values[0])
            return Choice((one.node,), (one.slots,), only.sets, only.ties, (one,), cut)
        # Filters instead of a sort: best values, then fewest GPUs left on the node, in the domain.
        values = np.array([b.values for b in best])
        top = values[:, 0] == values[:, 0].max()
        top &= values[:, 1] == values[top, 1].max()
        rows = np.flatnonzero(top[kinds.of_row])
        for spare in (left_beside(cell), popcount(cell.masks)):
            rows = rows[spare[rows] == spare[rows].min()]
        picked = rows[np.argmin(cell.units[rows])][None]
        shown = _considered(cell, kinds, best, picked.item())
        return _choice(cell, kinds, best, picked, rows, cut, shown)

    def even(self, cell: Cell) -> Choice:
        """Return several nodes that each give their own best set."""
        kinds, left = kinds_of(cell), left_beside(cell)
        best = _best_of_kinds(cell, kinds, self.goal)
        own = popcount(cell.masks).astype(np.int64)
        of_row = np.array([b.values for b in best])[kinds.of_row]
        optional = ~np.isin(cell.units, list(cell.supply.request.nodes.required))
        order = np.lexsort((cell.units, own, left, -of_row[:, 1], -of_row[:, 0], optional))
        order = _rows_of_best_group(cell, order, of_row, self.goal)
        last = order[-1]
        equal = np.flatnonzero((of_row == of_row[last]).all(axis=1) & (left == left[last]))
        return _choice(cell, kinds, best, np.sort(order), equal, _cut(kinds, self.goal))

    def same_indices(self, cell: Cell) -> Choice:
        return choose_same(cell, kinds_of(cell), self.goal)

    def uneven(self, cell: Cell) -> Choice:
        """Return, with the counts of `ByScores`, the best set on every node."""
        counts = ByScores().choose(cell)
        rows = cell.units.searchsorted(counts.nodes)
        chosen: list[tuple[int, ...]] = []
        sets = ties = 1
        for node, slots, mask in zip(counts.nodes, counts.slots, cell.masks[rows], strict=True):
            if cell.supply.cluster.indexed[node]:
                graph, free = graph_of(cell.supply.cluster, node), int(cell.supply.free[node])
                found = best_set(graph, free, int(mask), len(slots), self.goal)
                slots = slots_of(found.mask)
                sets, ties = sets * found.sets, ties * found.ties
            chosen.append(slots)
        return Choice(counts.nodes, tuple(chosen), sets, ties)


def _best_of_kinds(cell: Cell, kinds: Kinds, goal: Goal) -> list[BestSet]:
    whole, per_node = cell.supply.request.nodes.whole, cell.split.per_node
    return [
        (worst_set if plain else best_set)(
            graph, free, allowed, allowed.bit_count() if whole else per_node, goal
        )
        for graph, free, allowed, plain in kinds.each
    ]


def _choice(
    cell: Cell,
    kinds: Kinds,
    best: list[BestSet],
    picked: IntArray,
    equal: IntArray,
    cut: str | None,
    considered: tuple[Considered, ...] = (),
) -> Choice:
    """The best sets of the rows ``picked``; the rows ``equal`` tie with the last of them."""
    per_kind = np.bincount(kinds.of_row, minlength=len(best))
    tied = np.bincount(kinds.of_row[equal], minlength=len(best))
    return Choice(
        nodes=tuple(cell.units[picked].tolist()),
        slots=tuple(slots_of(best[kind].mask) for kind in kinds.of_row[picked]),
        sets=sum(int(n) * b.sets for n, b in zip(per_kind, best, strict=True)),
        ties=sum(int(n) * b.ties for n, b in zip(tied, best, strict=True)),
        considered=considered,
        cut=cut,
    )


def compared_in_part(cell: Cell, choice: Choice, goal: Goal) -> bool:
    """Say whether the compared embeddings may not be the best ones."""
    if goal.pattern.name != "edges" or goal.objective == "preserved":
        return False
    counts = {len(slots) for slots in choice.slots if len(slots) <= MAX_EXACT}
    kinds = kinds_of(cell).each
    return any(not exact_tables(kind.graph, goal.pattern, k) for kind in kinds for k in counts)


def _cut(kinds: Kinds, goal: Goal) -> str | None:
    """Words for the account on nodes that are too large for tables; None: no such node."""
    for graph, _, allowed, _ in kinds.each:
        many = goal.objective == "preserved" or allowed.bit_count() > MAX_EXACT
        if graph.n > MAX_EXACT and many and not graph.is_uniform:
            return "on nodes with more than 16 GPUs sets grown from each GPU, not all compared"
    return None


def _considered(
    cell: Cell, kinds: Kinds, best: list[BestSet], picked: int
) -> tuple[Considered, ...]:
    """The picked row's set, then one row's best set for each of the best other kinds."""
    own = kinds.of_row.item(picked)
    others = sorted((k for k in range(len(best)) if k != own), key=lambda k: best[k].values)
    shown = [own, *others[::-1][: MOST_CONSIDERED - 1]]
    rows = [picked, *((kinds.of_row == kind).argmax() for kind in shown[1:])]
    return tuple(
        Considered(node, slots_of(best[kind].mask), best[kind].values[0])
        for node, kind in zip(cell.units[rows].tolist(), shown, strict=True)
    )


def _rows_of_best_group(cell: Cell, order: IntArray, values: FloatArray, goal: Goal) -> IntArray:
    """The best rows of the best group."""
    numbers = groups_of(cell)
    top = top_rows(cell.group, order, numbers, cell.split.nodes)
    if len(numbers) == 1:
        return np.asarray(top[0])
    first, second = values[top, 0], values[top, 1]
    if goal.objective == "effbw":
        worst = first.min(axis=1)
        second = np.where(first == worst[:, None], second, np.inf).min(axis=1)
        first = worst
    else:
        first, second = first.sum(axis=1), np.zeros(len(numbers))
    left = left_beside(cell)[top].sum(axis=1)
    keys = (numbers, load_of_groups(cell)[numbers], left, -second, -first)
    return np.asarray(top[int(np.lexsort(keys)[0])])
