"""``pal+mapa``: PAL chooses the cell, MAPA the GPUs inside it.

All sets of a cell of the L x V matrix are equal for PAL: the same locality, the same worst score.
Links decide among them: the largest EffBW if the job is bandwidth sensitive, else the least link
bandwidth taken from others (PreservedBW), then best fit, then the lowest index. The predicted
slowdown is therefore always that of ``pal``.
"""

from __future__ import annotations

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment, cells_tried
from slurm_gpu_aware.placement.links import choose_by_links
from slurm_gpu_aware.placement.policies.mapa import (
    COMPARED_BY,
    LinkPolicy,
    goal_for,
    links_account,
    links_rule,
)
from slurm_gpu_aware.placement.policies.pal import best_cell

__all__ = ["PalMapa"]


class PalMapa(LinkPolicy):
    """The composition of PAL and MAPA; the selector's default.

    Nodes without measured links count as having equal links everywhere.
    """

    name = "pal+mapa"
    by_levels = True

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return exact nodes and slots, or None if nothing fits now."""
        goal = goal_for(request, self.options.model)
        cell = best_cell(request, cluster)
        if cell is None:
            return None
        choice = choose_by_links(cell, goal)
        links = links_account(cell, choice, goal)
        tried = cells_tried(cell)
        return assignment(
            self.name,
            cell,
            choice,
            why={**tried, **links},
            rule=links_rule(choice, goal, links),
            by=COMPARED_BY[goal.objective],
        )
