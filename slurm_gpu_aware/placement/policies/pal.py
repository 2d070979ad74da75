"""PAL: variability and locality together (Jain et al., SC'24, section III-C, algorithm 2)."""

from __future__ import annotations

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment, cells_tried
from slurm_gpu_aware.placement.cells import Cell, first_cell
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.level_views import level_views
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.score_table import score_table
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.shapes import splits

__all__ = ["Pal", "best_cell"]


def best_cell(request: Request, cluster: Cluster) -> Cell | None:
    """Return the first cell of PAL's walk that holds a set for the request, or None.

    For PAL all sets in the cell are equal (same level, same worst score); a composition such as
    ``pal+mapa`` chooses among them (see :class:`Cell`).

    Notes
    -----
    Algorithm 2 as printed returns without a test for a set; here the walk continues.
    """
    supply = Supply(request, cluster, score_table(cluster, request.app_class))
    levels = level_views(cluster, request.app_class)
    return first_cell(supply, levels, splits(request, cluster))


class Pal(Policy):
    """Walk the L x V matrix from the smallest product; take the first cell with a set.

    Jobs of one GPU get the best GPU (PM-First). Jobs larger than a node get the best GPUs of the
    cluster, under Slurm's constraint the same slots on every node. Within the cell: least
    variability (least sum of scores), then best fit, then the lowest index.

    Notes
    -----
    Exact: no set has a smaller product. Cost: some O(N) vector operations per tested cell, and
    O(W 2^W) for several nodes under Slurm's constraint.
    """

    name = "pal"
    by_levels = True

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return exact nodes and slots, or None if nothing fits now."""
        cell = best_cell(request, cluster)
        if cell is None:
            return None
        choice = ByScores().choose(cell)
        why = cells_tried(cell)
        tried = why["cells_tried"]
        rule = "the best cell has a set"
        if tried > 1:
            rule = f"the smallest L x V that holds a set, {tried} cells tried"
        return assignment(self.name, cell, choice, why=why, rule=rule)
