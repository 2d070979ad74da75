"""Lower bounds of the slowdown that GPUs can give a request, without a search for a set."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.level_views import level_views
from slurm_gpu_aware.placement.score_table import ScoreTable, score_table
from slurm_gpu_aware.placement.shapes import splits

__all__ = ["LeastSlowdown", "worst_of_best"]


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

    def on_nodes(self, nodes: IntArray, free: BoolArray) -> FloatArray:
        """(R,) bounds for sets on one node each; inf where too few GPUs are free.

        ``nodes``: (R,); ``free``: (R, W) GPUs of these nodes.
        """
        scores = np.where(free, self.table.scores[nodes], math.inf)
        return self.inside * worst_of_best(scores, self.gpus)

    def among(self, free: BoolArray) -> float:
        """Bound for the sets of these (N, W) GPUs; inf: too few."""
        scores = np.where(free, self.table.scores, math.inf)
        least = math.inf
        if self.inside < math.inf:
            least = self.inside * worst_of_best(scores, self.gpus).min().item()
        if self.across < math.inf:
            level = self.across / self.table.values.item(0)
            least = min(least, level * worst_of_best(scores.reshape(1, -1), self.gpus).item())
        return least


def worst_of_best(scores: FloatArray, count: int) -> FloatArray:
    """(C,) the largest of the ``count`` least scores of each of C rows; inf: they have fewer."""
    width = scores.shape[1]
    if count > width:
        return np.full(len(scores), math.inf)
    if count == 1:
        return np.asarray(scores.min(axis=1))
    if count == width:
        return np.asarray(scores.max(axis=1))
    return np.asarray(np.partition(scores, count - 1, axis=1)[:, count - 1])
