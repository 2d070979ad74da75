"""``pal+mapa``: PAL chooses the cell, MAPA the GPUs inside it.

For PAL all sets of a cell of the L x V matrix are equal: the same level, the same worst score.
Links decide among them: the largest EffBW for a bandwidth-sensitive job, else the least link
bandwidth taken from others (PreservedBW), then best fit, then the lowest index. The predicted
slowdown is that of ``pal``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import cells_tried
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.policies.mapa import LinkPolicy
from slurm_gpu_aware.placement.policies.pal import best_cell

__all__ = ["PalMapa"]


class PalMapa(LinkPolicy):
    """The composition of PAL and MAPA; the selector's default."""

    name = "pal+mapa"
    by_levels = True

    def cell(self, request: Request, cluster: Cluster) -> Cell | None:
        """Return PAL's cell."""
        return best_cell(request, cluster)

    def account(self, cell: Cell) -> Mapping[str, Any]:
        """Return the cells that PAL tried."""
        return cells_tried(cell)
