"""Work of a job that may end before its last epoch, and its optimal growth (STS, III and P3).

Shapes of survival functions: straight pieces and jumps.

Earlier runs and epochs need no others. Parametric ones, such as a Weibull distribution, implement
`Shape`, too; the tests plan with them (``tests/unit/sizing/parametric_work.py``).
Each unit of work w is done at some speed s_k. Problem P3 minimises the expected cost, the sum of
Q(s_k) times the integral of P(W > w) over the work at s_k, where all the work in its longest case
has to end in time. With a price of time, lambda, the work at w is cheapest at the speed k with
Phi_(k-1) P(W > w) <= lambda < Phi_k P(W > w): speeds are consecutive and rise as the job goes on.
The paper's dichotomy over the slowest speed used and its equation (25) become one search for
lambda here, which needs no case for atoms and steps of the distribution (Filippini et al., section
IV and Algorithm 1, corrected).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from slurm_gpu_aware.features.sizes.speeds import Speeds
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

    work: FloatArray  # (N,) ascending from 0.
    level: FloatArray  # (N,) S at these points, descending to 0.

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


def empirical(cases: Sequence[float], most: float) -> WorkDistribution:
    """The cases seen, all alike, up to ``most``; what is above it counts as ``most``.

    ValueError: there is no case.
    """
    if not len(cases):
        raise ValueError("cases are needed")
    values, counts = np.unique(np.minimum(cases, most), return_counts=True)
    after = np.maximum(1 - np.cumsum(counts) / len(cases), 0.0)
    work = np.concatenate(([0.0], np.repeat(values, 2), [most]))
    level = np.concatenate(([1.0, 1.0], np.repeat(after, 2)))
    return WorkDistribution(Pieces(work, level), 1.0, 0.0, 0.0, float(most))


GRID = np.linspace(0.0, 1.0, 33)[1:-1]  # Prices tried at a time.
ROUNDS = 12  # Of the search: 32^12 exceeds what a float resolves.
GAP = 1e-10  # Relative distance from the optimum at which the search ends.
TIGHT = 1e-9  # Relative excess of a due date that is rounding.


@dataclass(frozen=True)
class GrowthPlan:
    """Sizes of a job, and the work at which it leaves each of them."""

    gpus: tuple[float, ...]  # Sizes in use, ascending.
    until: tuple[float, ...]  # Work done when the job leaves that size; the last one: all of it.
    leaves: tuple[float, ...]  # Time from now until then.
    cost: float  # Expected cost, from now on.
    late: float  # Time by which that is late; 0: the due date is always met.
    in_time: float  # Probability of the due date.

    @property
    def longest(self) -> float:
        """Time to the end if all the work is to be done."""
        return self.leaves[-1]

    def growth_time(self, gpus: float) -> float:
        """Time from now until a job of this size should grow; inf: never, or not in the plan."""
        times = zip(self.gpus[:-1], self.leaves, strict=False)
        return next((time for size, time in times if size == gpus), math.inf)


def optimum(work: WorkDistribution, speeds: Speeds, time_left: float) -> GrowthPlan:
    """The plan of least expected cost that meets the due date whatever the work.

    If none does, the fastest size throughout. Time: that of ``speeds``.
    """
    speeds = speeds.undominated
    amount = work.most - work.done
    count = len(speeds.gpus)
    if amount * speeds.unit_time[-1] > time_left * (1 - TIGHT):
        return constant(work, speeds, count - 1, time_left)
    if amount * speeds.unit_time[0] <= time_left * (1 + TIGHT):
        return constant(work, speeds, 0, time_left)
    return _plan(work, speeds, _changes(work, speeds, time_left), time_left)


def best_constant(work: WorkDistribution, speeds: Speeds, time_left: float) -> GrowthPlan:
    """The cheapest size that meets the due date without growth; if none does, the fastest."""
    longest = (work.most - work.done) * speeds.unit_time
    in_time = (longest <= time_left * (1 + TIGHT)).nonzero()[0]
    best = in_time[speeds.unit_cost[in_time].argmin()] if len(in_time) else len(longest) - 1
    return constant(work, speeds, int(best), time_left)


def constant(work: WorkDistribution, speeds: Speeds, k: int, time_left: float) -> GrowthPlan:
    """The plan that stays at the size of index ``k``."""
    longest = (work.most - work.done) * float(speeds.unit_time[k])
    cost = work.mean_left * float(speeds.unit_cost[k])
    late, in_time = _late(work, longest, float(speeds.speed[k]), time_left)
    return GrowthPlan((float(speeds.gpus[k]),), (work.most,), (longest,), cost, late, in_time)


def _late(
    work: WorkDistribution, longest: float, speed: float, time_left: float
) -> tuple[float, float]:
    """(Time by which ``longest`` is late, probability of the due date at a speed)."""
    late = longest - time_left
    if late <= TIGHT * longest:
        return 0.0, 1.0
    reached = work.done + max(time_left, 0.0) * speed
    return late, 1.0 - float(work.survival(np.array([reached]))[0])


def _changes(work: WorkDistribution, speeds: Speeds, time_left: float) -> FloatArray:
    """(K - 1,) work at which each size but the last is left, so that ``time_left`` is used up.

    The search keeps a price at which the job takes too long and a higher one at which it does not.
    A mixture of their changes is optimal to (difference of the prices) x (difference of the times),
    and exactly if the distribution is flat between them, as at a step.
    """
    fixed = work.most * speeds.unit_time[-1] - work.done * speeds.unit_time[0]
    target = time_left - fixed
    low, high = 0.0, 2.0 * float(speeds.price[-1])
    ends = [np.full(len(speeds.price), work.most), np.full(len(speeds.price), work.done)]
    times = [float(x @ speeds.unit_gain) for x in ends]
    enough = GAP * float(speeds.unit_cost[0]) * work.mean_left
    for _ in range(ROUNDS):
        if (high - low) * (times[0] - times[1]) <= enough:
            break
        prices = low + GRID * (high - low)
        tried = work.inverse(prices[:, None] / speeds.price)
        took = tried @ speeds.unit_gain
        short = int((-took).searchsorted(-target))
        if short < len(took):
            high, ends[1], times[1] = float(prices[short]), tried[short], float(took[short])
        if short > 0:
            low, ends[0] = float(prices[short - 1]), tried[short - 1]
            times[0] = float(took[short - 1])
    longer = times[0] - times[1]
    share = min((target - times[1]) / longer, 1.0) if longer > 0 else 0.0
    changes: FloatArray = ends[1] + share * (ends[0] - ends[1])
    return changes


def _plan(
    work: WorkDistribution, speeds: Speeds, changes: FloatArray, time_left: float
) -> GrowthPlan:
    bounds = np.concatenate(([work.done], changes, [work.most]))
    areas = work.integral(bounds)
    amounts, expected = bounds[1:] - bounds[:-1], areas[1:] - areas[:-1]
    used = (amounts > TIGHT * work.most).nonzero()[0]
    if not len(used):  # next to no work is left
        used = np.array([int(amounts.argmax())])
    longest = float(amounts @ speeds.unit_time)
    late, in_time = _late(work, longest, float(speeds.speed[-1]), time_left)
    return GrowthPlan(
        tuple(speeds.gpus[used].tolist()),
        tuple(bounds[used + 1].tolist()),
        tuple((amounts * speeds.unit_time).cumsum()[used].tolist()),
        float(expected @ speeds.unit_cost),
        late,
        in_time,
    )
