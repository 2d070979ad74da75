"""Selection by links: MAPA's bandwidths, then best fit, then the lowest index.

On several nodes every node's part of the job is scored with the job's pattern on that part. The
value of the job is its worst part (``effbw``) or the sum of its parts (other objectives). Under
Slurm's constraint the index set and the nodes are searched together.
"""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.masks import popcount
from slurm_gpu_aware.placement.selection.base import MOST_CONSIDERED, Choice, Considered, Selection
from slurm_gpu_aware.placement.selection.by_links_same import choose_same
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.selection.links import (
    BestSet,
    Goal,
    Kinds,
    best_set,
    graph_of,
    kinds_of,
    worst_set,
)
from slurm_gpu_aware.placement.selection.rows import (
    groups_of,
    left_beside,
    load_of_groups,
    top_rows,
)
from slurm_gpu_aware.topology.matching import exact_tables
from slurm_gpu_aware.topology.subsets import MAX_EXACT, slots_of


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
        optional = ~np.isin(cell.units, list(cell.supply.request.required))
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
    whole, per_node = cell.supply.request.whole_node, cell.split.per_node
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
    sizes = {len(slots) for slots in choice.slots if len(slots) <= MAX_EXACT}
    kinds = kinds_of(cell).each
    return any(not exact_tables(kind.graph, goal.pattern, k) for kind in kinds for k in sizes)


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
