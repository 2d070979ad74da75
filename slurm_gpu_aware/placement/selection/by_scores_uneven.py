"""Selection by scores of uneven parts: the best GPUs of a group."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.fit import uneven_capacity, widest_nodes
from slurm_gpu_aware.placement.masks import unpack
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.groups import (
    Candidate,
    Walk,
    best_first,
    groups_of,
    load_of_groups,
    top_rows,
)
from slurm_gpu_aware.placement.selection.score_rows import fixed_scores

__all__ = ["choose_uneven"]


def choose_uneven(cell: Cell) -> Choice | None:
    """Return the best GPUs of the best group."""
    supply, request = cell.supply, cell.supply.request
    capacity = uneven_capacity(supply, cell.units, cell.masks)
    group = cell.group
    fine = groups_of(cell)
    best: tuple[float, IntArray, IntArray] | None = None
    walk = Walk(_promising(cell, fine))
    for bound, number in walk:
        rows = np.flatnonzero((group == number) & (capacity > 0))
        if request.max_nodes is not None:
            rows = _within_max(cell, rows, capacity)
        row_of, slot_of, fixed = _best_gpus(cell, rows, capacity[rows])
        total = float(fixed.sum())
        if walk.improves((total, *bound[1:])):
            best = (total, row_of, slot_of)
    if best is None:
        return None
    total, row_of, slot_of = best
    nodes = cell.units[row_of]
    used = np.unique(nodes)
    return Choice(
        nodes=tuple(int(n) for n in used),
        slots=tuple(tuple(sorted(int(s) for s in slot_of[nodes == n])) for n in used),
        total=int(total),
        candidates=len(cell.units),
        sets=None,
        ties=1,
    )


def _promising(cell: Cell, fine: IntArray) -> Iterable[Candidate]:
    """Groups by the least sum of their best scores, on any nodes of the group."""
    if len(fine) == 1:
        return [((0.0, 0.0, 0.0), int(fine[0]))]
    gpus = cell.supply.request.gpus
    least = np.full(len(fine), float(gpus * cell.supply.table.fixed_value(0)))
    if cell.bound_index > 0:  # otherwise all GPUs of the cell are equal
        row, slot = np.nonzero(cell.allowed)
        score, group = fixed_scores(cell)[row, slot], cell.group[row]
        least = score[top_rows(group, score.argsort(), fine, gpus)].sum(axis=1).astype(np.float64)
    return best_first(fine, load_of_groups(cell), least)


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
    """Row, slot and score of the job's GPUs, from these rows.

    By score, then from the node with the most candidates, to use fewer nodes.
    """
    request = cell.supply.request
    masks = cell.masks[rows]
    width = cell.supply.cluster.shape[1]
    fixed = np.where(unpack(masks, width), fixed_scores(cell, rows), np.iinfo(np.int64).max)
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
    """First the best GPU of each required node and of enough others, then the best of the rest."""
    first: dict[int, int] = {}
    for gpu in by_score.tolist():
        first.setdefault(int(at[gpu]), gpu)
    others = [row for row in first if row not in set(needed)]
    spread = [first[row] for row in [*needed, *others][: max(fewest, len(needed))]]
    rest = [gpu for gpu in by_score.tolist() if gpu not in set(spread)]
    return np.array([*spread, *rest][:gpus], dtype=np.int64)
