"""Shapes of survival functions: straight pieces and jumps.

Earlier runs and epochs need no others. Parametric ones, such as a Weibull distribution, implement
`Shape`, too; the tests plan with them (``tests/unit/sizing/parametric_work.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray


class Shape(Protocol):
    """S(w) = P(W > w) of some work W >= 0: 1 or less at 0, never rising, continuous from above.

    All methods take and return arrays of one shape.
    """

    def __hash__(self) -> int: ...

    def survival(self, work: FloatArray) -> FloatArray:
        """S(w)."""

    def inverse(self, level: FloatArray) -> FloatArray:
        """Greatest w with S(w) >= level; not below 0, inf where S stays above."""

    def integral(self, work: FloatArray) -> FloatArray:
        """Integral of S from 0 to w."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Straight pieces between points; two points at the same work are a jump."""

    work: FloatArray
    """(N,) ascending from 0."""
    level: FloatArray
    """(N,) S at these points, descending to 0."""

    def __post_init__(self) -> None:
        if len(self.work) < 2 or self.work.shape != self.level.shape or self.work[0] != 0:
            raise ValueError("work and level must be of the same length, 2 or more, from work 0")
        if np.any(np.diff(self.work) < 0) or np.any(np.diff(self.level) > 0):
            raise ValueError("work must ascend and level descend")
        if not (np.isfinite(self.work[-1]) and self.level[0] <= 1 and self.level[-1] == 0):
            raise ValueError("work must be finite, level at most 1 and 0 at the end")

    @cached_property
    def _areas(self) -> FloatArray:
        means = (self.level[1:] + self.level[:-1]) / 2
        return np.concatenate(([0.0], np.cumsum(means * np.diff(self.work))))

    def survival(self, work: FloatArray) -> FloatArray:
        left, share = self._piece(work)
        right = np.minimum(left + 1, len(self.work) - 1)
        found: FloatArray = self.level[left] + share * (self.level[right] - self.level[left])
        return found

    def inverse(self, level: FloatArray) -> FloatArray:
        right = np.searchsorted(-self.level, -level, side="right")
        left = np.maximum(right - 1, 0)
        right = np.minimum(right, len(self.work) - 1)
        fall = self.level[left] - self.level[right]
        share = (self.level[left] - level) / np.where(fall > 0, fall, 1.0)
        width = self.work[right] - self.work[left]
        found: FloatArray = self.work[left] + share.clip(0, 1) * width
        return found

    def integral(self, work: FloatArray) -> FloatArray:
        left, _ = self._piece(work)
        mean = (self.level[left] + self.survival(work)) / 2
        width = np.minimum(work, self.work[-1]) - self.work[left]
        found: FloatArray = self._areas[left] + mean * width
        return found

    def _piece(self, work: FloatArray) -> tuple[IntArray, FloatArray]:
        """(index of the last point at or before the work, share of the way to the next one)."""
        left = np.searchsorted(self.work, work, side="right") - 1
        right = np.minimum(left + 1, len(self.work) - 1)
        width = self.work[right] - self.work[left]
        share = (work - self.work[left]) / np.where(width > 0, width, 1.0)
        return left.astype(np.int64), np.where(width > 0, share, 0.0)
