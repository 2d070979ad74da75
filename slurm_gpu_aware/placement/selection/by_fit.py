"""Selection by fit: the fewest GPUs left free on the nodes, then the lowest index."""

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.level_views import popcount
from slurm_gpu_aware.placement.selection.base import Choice, groups_of, load_of_groups
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.topology.subsets import slots_of

_MOST_GROUPS = 32  # groups with the fewest free GPUs, for uneven splits
_MOST_NODES = 1 << 20  # a GPU left free counts for so many nodes
_NEVER = 1 << 60


class ByFit(ByScores):
    """Fewest GPUs left free; for cells of a table in which all scores are equal.

    An uneven split takes the nodes that leave the fewest GPUs free, of these the fewest nodes. With
    a limit on its nodes, or nodes that it must have, it takes the nodes with the most GPUs.
    """

    def uneven(self, cell: Cell) -> Choice:
        request = cell.supply.request
        if request.max_nodes is not None or request.nodes.required or request.min_nodes > 2:
            return super().uneven(cell)
        capacity = cell.supply.capacity(cell.units, cell.masks)
        if request.min_nodes == 2:  # so that no node suffices alone
            capacity = np.minimum(capacity, request.gpus - 1)
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
    """Row -> GPUs that it gives. ``capacity``, ``free``: (C,) for these rows.

    A covering knapsack over kinds of rows, with the numbers of a kind in powers of two: exact, in
    O(kinds x gpus x log gpus).
    """
    kinds, counts = np.unique(np.stack([capacity, free]), axis=1, return_counts=True)
    least = np.full(gpus + 1, _NEVER)
    least[0] = 0
    steps: list[tuple[int, int, BoolArray]] = []
    for kind, (gives, has) in enumerate(kinds.T.tolist()):
        more, number = min(int(counts[kind]), -(-gpus // gives)), 1
        while more:
            number = min(number, more)
            covers = min(number * gives, gpus)
            before = np.concatenate([np.zeros(covers, dtype=np.int64), least[: gpus + 1 - covers]])
            cost = before + number * (has * _MOST_NODES + 1)
            steps.append((kind, number, cost < least))
            least = np.minimum(least, cost)
            more, number = more - number, number * 2
    taken, missing = [0] * len(counts), gpus
    for kind, number, better in reversed(steps):
        if better[missing]:
            taken[kind] += number
            missing = max(missing - number * int(kinds[0, kind]), 0)
    found: dict[int, int] = {}
    missing = gpus
    for kind in reversed(range(len(counts))):  # the largest first
        alike = rows[(capacity == kinds[0, kind]) & (free == kinds[1, kind])]
        for row in alike[: taken[kind]].tolist():
            found[row] = min(missing, int(kinds[0, kind]))
            missing -= found[row]
    return found
