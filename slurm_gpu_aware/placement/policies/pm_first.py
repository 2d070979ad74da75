"""PM-First: the best GPUs by score, without locality (Jain et al., SC'24, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment
from slurm_gpu_aware.placement.cells import Cell, holds, smallest_bound
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.level_views import anywhere
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.score_table import score_table
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.shapes import Split, splits

__all__ = ["PmFirst", "best_anywhere"]


def best_anywhere(supply: Supply, choices: Sequence[Split]) -> tuple[Cell, Choice] | None:
    """Return the set with the least worst score over all splits, then the least sum.

    Locality does not count; of equal sets the one on fewer nodes wins.
    """
    level = anywhere(supply.cluster)
    found = smallest_bound(supply, level, choices, len(supply.table.values))
    if found is None:
        return None
    bound, _ = found
    best: tuple[Cell, Choice] | None = None
    for split in choices:
        if holds(supply, level, split, bound):
            cell = Cell(supply, level, bound, split)
            choice = ByScores().choose(cell)
            if best is None or choice.total < best[1].total:
                best = cell, choice
    return best


class PmFirst(Policy):
    """The GPUs with the best scores for the job's class, locality ignored.

    With free choice per node these are the G best GPUs on any nodes. Under Slurm's constraint the
    worst score is minimised exactly over node counts, index sets and nodes. (Algorithm 1 prints a
    descending sort, but scores are times, so the lowest is best.)
    """

    name = "pm-first"

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return exact nodes and slots, or None if nothing fits now."""
        supply = Supply(request, cluster, score_table(cluster, request.app_class))
        found = best_anywhere(supply, splits(request, cluster))
        if found is None:
            return None
        cell, choice = found
        rule = "the best free scores, without locality"
        why = {"bound": round(cell.score, 4)}
        return assignment(self.name, cell, choice, why=why, rule=rule)
