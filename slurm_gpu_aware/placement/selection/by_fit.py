"""Selection by fit: the fewest GPUs left free on the nodes, then the lowest index."""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.level_views import popcount
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.selection.rows import groups_of, load_of_groups
from slurm_gpu_aware.topology.subsets import slots_of

_MOST_GROUPS = 32  # groups with the fewest free GPUs, for uneven splits


class ByFit(ByScores):
    """Fewest GPUs left free; for cells of a table in which all scores are equal.

    An uneven split takes the nodes with the most GPUs as long as it needs all of them, then the
    node that the rest fits best. A limit on its nodes makes it take the nodes with the most GPUs.
    """

    def uneven(self, cell: Cell) -> Choice:
        request = cell.supply.request
        if request.max_nodes is not None or request.fewest_nodes > 1:
            return super().uneven(cell)
        capacity = cell.supply.capacity(cell.units, cell.masks)
        free = popcount(cell.supply.free[cell.units]).astype(np.int64)
        numbers = groups_of(cell)
        if len(numbers) > 1:
            load = load_of_groups(cell)[numbers]
            numbers = numbers[np.lexsort((numbers, load))[:_MOST_GROUPS]]
        best: tuple[int, dict[int, int]] | None = None
        for number in numbers.tolist():
            rows = np.flatnonzero((cell.group == number) & (capacity > 0))
            counts = _fitted(request.gpus, rows, capacity[rows], free[rows])
            left = sum(int(free[row]) - count for row, count in counts.items())
            if best is None or left < best[0]:
                best = left, counts
        assert best is not None  # noqa: S101 - the cell holds a set
        chosen = sorted(best[1].items())
        slots = tuple(slots_of(int(cell.masks[row]))[:count] for row, count in chosen)
        nodes = tuple(int(cell.units[row]) for row, _ in chosen)
        return Choice(nodes, slots, sets=None, ties=1)


def _fitted(gpus: int, rows: IntArray, capacity: IntArray, free: IntArray) -> dict[int, int]:
    """Row -> GPUs that it gives. ``capacity``, ``free``: (C,) for these rows."""
    missing = gpus
    order = np.lexsort((rows, free, -capacity)).tolist()
    counts: dict[int, int] = {}
    for at in order:
        if not missing:
            break
        if capacity[at] > missing:
            fitting = [one for one in order if capacity[one] >= missing and one not in counts]
            at = min(fitting, key=lambda one: (int(free[one]), one))
        counts[at] = min(missing, int(capacity[at]))
        missing -= counts[at]
    return {int(rows[at]): count for at, count in counts.items()}
