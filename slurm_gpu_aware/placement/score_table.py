"""Scores of one class for policies: distinct values, masks, integers."""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.identity_cache import by_identity
from slurm_gpu_aware.placement.masks import MaskArray, pack

_FIXED_POINT = 1e5  # sums of scores are integers of five decimals, so equal sums compare equal
_LARGEST_SCORE = 100.0  # limit of a score in sums (not in the worst score)
_MOST_MASKS = 64


class ScoreTable:
    """The (N, W) scores of one class; 1.0 for values that are not finite.

    ``values``: (B,) ascending distinct scores of the GPUs that exist: PAL's bins. ``scores``,
    ``fixed``: (N, W) scores, and as integers of 1e-5, for sums independent of their order.
    """

    def __init__(self, scores: FloatArray, exists: BoolArray) -> None:
        self.scores: FloatArray = np.where(np.isfinite(scores), scores, 1.0)
        present = self.scores[exists]
        self.values: FloatArray = np.unique(present) if present.size else np.ones(1)
        clipped = np.minimum(self.scores, _LARGEST_SCORE)
        self.fixed: IntArray = np.rint(clipped * _FIXED_POINT).astype(np.int64)
        self._masks: dict[int, MaskArray] = {}

    def fixed_value(self, index: int) -> int:
        """``values[index]`` in the unit of ``fixed``."""
        return round(min(self.values.item(index), _LARGEST_SCORE) * _FIXED_POINT)

    def at_most(self, index: int) -> MaskArray:
        """(N,) masks of the GPUs with a score of at most ``values[index]``."""
        found = self._masks.get(index)
        if found is None:
            found = pack(self.scores <= self.values[index])
            if len(self._masks) < _MOST_MASKS:
                self._masks[index] = found
        return found


def score_table(cluster: Cluster, app_class: str) -> ScoreTable:
    """Return the table of a class, cached by the identity of its array, which becomes read-only."""
    return _table(cluster.scores.get(app_class), cluster.exists)


def flat_table(cluster: Cluster) -> ScoreTable:
    """Return a table with score 1.0 for all GPUs."""
    return _table(None, cluster.exists)


@by_identity
def _table(scores: FloatArray | None, exists: BoolArray) -> ScoreTable:
    if scores is None:
        return ScoreTable(np.ones(exists.shape), exists)
    scores.flags.writeable = False
    return ScoreTable(scores, exists)
