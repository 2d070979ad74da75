"""Distribution of the work of a job that may end before its last epoch (STS, section III).

Shapes of survival functions: straight pieces and jumps.

Earlier runs and epochs need no others. Parametric ones, such as a Weibull distribution, implement
`Shape`, too; the tests plan with them (``tests/unit/sizing/parametric_work.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        if (self.work[1:] < self.work[:-1]).any() or (self.level[1:] > self.level[:-1]).any():
            raise ValueError("work must ascend and level descend")
        if not (np.isfinite(self.work[-1]) and self.level[0] <= 1 and self.level[-1] == 0):
            raise ValueError("work must be finite, level at most 1 and 0 at the end")

    @cached_property
    def _lines(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(N,) widths of the pieces from each point on, falls by width, and areas before it."""
        widths, areas = np.zeros_like(self.work), np.zeros_like(self.work)
        np.subtract(self.work[1:], self.work[:-1], out=widths[:-1])
        means = (self.level[1:] + self.level[:-1]) / 2
        np.cumsum(means * widths[:-1], out=areas[1:])
        return widths, _ratios(self.level[:-1] - self.level[1:], widths), areas

    @cached_property
    def _rising(self) -> tuple[FloatArray, FloatArray]:
        """(N,) -S, and width by fall of the pieces from each point on."""
        falls = np.zeros_like(self.level)
        np.subtract(self.level[:-1], self.level[1:], out=falls[:-1])
        return -self.level, _ratios(self._lines[0][:-1], falls)

    def survival(self, work: FloatArray) -> FloatArray:
        left = self._left(work)
        found: FloatArray = self.level[left] - (work - self.work[left]) * self._lines[1][left]
        return found

    def inverse(self, level: FloatArray) -> FloatArray:
        rising, ratios = self._rising
        left = np.maximum(rising.searchsorted(-level, side="right") - 1, 0)
        further = np.maximum(self.level[left] - level, 0.0) * ratios[left]
        found: FloatArray = self.work[left] + np.minimum(further, self._lines[0][left])
        return found

    def integral(self, work: FloatArray) -> FloatArray:
        left, (_, slopes, areas) = self._left(work), self._lines
        width = np.minimum(work, self.work[-1]) - self.work[left]
        mean = self.level[left] - width * slopes[left] / 2
        found: FloatArray = areas[left] + mean * width
        return found

    def _left(self, work: FloatArray) -> IntArray:
        """Index of the last point at or before the work."""
        return self.work.searchsorted(work, side="right") - 1


def _ratios(parts: FloatArray, by: FloatArray) -> FloatArray:
    """(N,) ``parts``, (N - 1,), by ``by``, (N,); 0 where that is 0."""
    found = np.zeros_like(by)
    np.divide(parts, by[:-1], out=found[:-1], where=by[:-1] > 0)
    return found


@dataclass(frozen=True, eq=False)
class WorkDistribution:
    """P(W > w) given that W > done: ``factor * S(w) + offset`` below ``most``, and 0 from there.

    Truncation, an atom at the most work and the condition on work done all keep this form, so that
    they can be combined in any order. Work is in any unit, for instance epochs.
    """

    shape: Shape
    factor: float
    offset: float
    done: float
    most: float

    def survival(self, work: FloatArray) -> FloatArray:
        """P(W > w), for w >= done."""
        inside = self.factor * self.shape.survival(work) + self.offset
        return np.where(work < self.most, inside.clip(0, 1), 0.0)

    def inverse(self, level: FloatArray) -> FloatArray:
        """Greatest work w from done to most with P(W > w') >= level for all w' below w.

        Above every level that is reached: done.
        """
        if self.factor == 0:
            return np.where(level <= self.offset, self.most, self.done)
        found = self.shape.inverse((level - self.offset) / self.factor)
        return np.where(level > 1, self.done, found.clip(self.done, self.most))

    def integral(self, work: FloatArray) -> FloatArray:
        """Integral of P(W > w) from done to some work that is at most ``most``.

        Up to ``most``: the mean of the work left.
        """
        area = self.factor * (self.shape.integral(work) - self._area_done)
        return area + self.offset * (work - self.done)

    @cached_property
    def _area_done(self) -> FloatArray:
        return self.shape.integral(np.array([self.done]))

    @cached_property
    def mean_left(self) -> float:
        """Mean of the work that is left."""
        return float(self.integral(np.array([self.most]))[0])

    def given(self, done: float) -> WorkDistribution:
        """Distribution of a job that has done this much work and goes on.

        A job that has outlived every case known is expected to do all the work. ValueError: done is
        below what was done, or not below the most work.
        """
        if not self.done <= done < self.most:
            raise ValueError(f"work done must be from {self.done} to below {self.most}: {done}")
        left = float(self.survival(np.array([done]))[0])
        if left <= 0:
            return replace(self, factor=0.0, offset=1.0, done=done)
        return replace(self, factor=self.factor / left, offset=self.offset / left, done=done)


def uniform(longest: float, most: float) -> WorkDistribution:
    """All work from 0 to ``longest`` alike, up to ``most``; what is above it counts as ``most``."""
    line = Pieces(np.array([0.0, longest]), np.array([1.0, 0.0]))
    return WorkDistribution(line, 1.0, 0.0, 0.0, min(most, longest))


def empirical(
    cases: Sequence[float], most: float, weights: Sequence[float] | None = None
) -> WorkDistribution:
    """The cases seen, all alike or weighted, up to ``most``; what is above it counts as ``most``.

    A discrete distribution is the cases with their probabilities. ValueError: there is no case.
    """
    counts = np.ones(len(cases)) if weights is None else np.array(weights, dtype=float)
    if not len(cases) == len(counts) > 0 or np.any(counts < 0) or counts.sum() <= 0:
        raise ValueError("cases are needed, and weights must not be negative")
    seen = np.minimum(cases, most).astype(float)
    order = seen.argsort()
    values = seen[order]
    last = np.concatenate((values[1:] > values[:-1], [True]))
    after = np.maximum(1 - np.cumsum(counts[order])[last] / counts.sum(), 0.0)
    after[-1] = 0.0
    work = np.concatenate(([0.0], np.repeat(values[last], 2), [most]))
    level = np.concatenate(([1.0, 1.0], np.repeat(after, 2)))
    return WorkDistribution(Pieces(work, level), 1.0, 0.0, 0.0, float(most))
