"""Lower bounds of the slowdown that GPUs can give a request, without a search for a set."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.level_views import level_views
from slurm_gpu_aware.placement.score_table import ScoreTable, score_table
from slurm_gpu_aware.placement.shapes import splits

__all__ = ["LeastSlowdown"]


@dataclass(frozen=True, eq=False)
class LeastSlowdown:
    """Bounds of L x max V of the sets of a request on a cluster, whatever is free."""

    table: ScoreTable
    gpus: int
    inside: float
    """Least L of a set on one node; inf if the request needs several."""
    across: float
    """Least L x V of a set over several nodes; inf if the request does not allow any."""

    @classmethod
    def of(cls, request: Request, cluster: Cluster) -> LeastSlowdown:
        """Bounds by the levels, the splits and the best score."""
        table = score_table(cluster, request.app_class)
        inside = across = math.inf
        choices = splits(request, cluster)
        alone = any(split.nodes == 1 for split in choices)
        several = any(split.nodes != 1 for split in choices)
        for level in level_views(cluster, request.app_class):
            if level.one_node and alone:
                inside = min(inside, level.penalty)
            elif not level.one_node and several:
                across = min(across, level.penalty)
        return cls(table, request.gpus, inside, across * table.values.item(0))

    @property
    def anywhere(self) -> float:
        """Bound for any set."""
        return min(self.inside * self.table.values.item(0), self.across)

    def on_node(self, node: int, slots: Collection[int]) -> float:
        """Bound for sets of these slots of a node; inf if they are too few."""
        if len(slots) < self.gpus:
            return math.inf
        scores = self.table.scores[node]
        return self.inside * float(sorted([scores.item(slot) for slot in slots])[self.gpus - 1])
