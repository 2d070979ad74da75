"""Optimal growth of one job with a due date: when it gets more GPUs (STS, problem P3).

Each unit of work w is done at some speed s_k. Problem P3 minimises the expected cost, the sum of
Q(s_k) times the integral of P(W > w) over the work at s_k, where all the work in its longest case
has to end in time. With a price of time, lambda, the work at w is cheapest at the speed k with
Phi_(k-1) P(W > w) <= lambda < Phi_k P(W > w): speeds are consecutive and rise as the job goes on.
The paper's dichotomy over the slowest speed used and its equation (25) become one search for
lambda here, which needs no case for atoms and steps of the distribution (Filippini et al., section
IV and Algorithm 1, corrected).
"""

import math
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.features.due_dates.work import WorkDistribution
from slurm_gpu_aware.features.sizes.speeds import Speeds
from slurm_gpu_aware.model.arrays import FloatArray

GRID = np.linspace(0.0, 1.0, 33)[1:-1]
"""Prices tried at a time."""
ROUNDS = 12
"""Of the search: 32^12 exceeds what a float resolves."""
GAP = 1e-10
"""Relative distance from the optimum at which the search ends."""
TIGHT = 1e-9
"""Relative excess of a due date that is rounding."""


@dataclass(frozen=True)
class GrowthPlan:
    """Sizes of a job, and the work at which it leaves each of them."""

    gpus: tuple[float, ...]
    """Sizes in use, ascending."""
    until: tuple[float, ...]
    """Work done when the job leaves that size; the last one: all of it."""
    leaves: tuple[float, ...]
    """Time from now until then."""
    cost: float
    """Expected cost, from now on."""
    late: float
    """Time by which that is late; 0: the due date is always met."""
    in_time: float
    """Probability of the due date."""

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
