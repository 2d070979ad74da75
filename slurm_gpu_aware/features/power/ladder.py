"""Ladders: the clocks of a size, or the sizes of a job, that are worth a step up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.features.power.allocation import SizingJob, sized_at
from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.size_table import least_energy

MICRO = 1_000_000
MOST_W = 1e8
"""Power above this is taken as this: sums of it stay exact."""


def microwatts(power_w: float) -> int:
    """Whole microwatts, rounded up: sums of them are exact and never below the true power."""
    return math.ceil(MICRO * min(power_w, MOST_W))


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps up a ladder, each with a smaller return than the one before (a convex hull).

    Where a later step has the larger return, the two are one step: taken alone, the first would
    hide the second.
    """

    to: IntArray
    """(M,) rung that each step ends on."""
    gain: FloatArray
    """(M,) time saved of a unit of work, s; positive."""
    cost: IntArray
    """(M,) power added, µW; 0 or less: the step costs nothing."""


@dataclass(frozen=True, eq=False)
class Ladder:
    """Clocks of one size: each rung is faster than the one below it and draws more power."""

    clocks_mhz: tuple[int | None, ...]
    """(R,) SM clocks; None: the default clock."""
    time_s: FloatArray
    """(R,) falling; NaN, in a ladder of one rung: not known."""
    power_uw: IntArray
    """(R,) rising."""
    efficient: int
    """Rung with the least energy of a unit of work."""
    below: Steps
    """Steps from the lowest rung to the efficient one."""
    above: Steps
    """Steps from the efficient rung to the highest one."""

    @property
    def efficient_s(self) -> float:
        """Time of a unit of work at the efficient clock."""
        return float(self.time_s[self.efficient])

    @property
    def efficient_uw(self) -> int:
        """Power at the efficient clock."""
        return int(self.power_uw[self.efficient])


def steps(time_s: FloatArray, power_uw: IntArray, first: int, last: int) -> Steps:
    """Steps from rung ``first`` to rung ``last``; ``time_s`` falls.

    A step's return is time per power; it is infinite at no cost.
    """
    found: list[tuple[int, float, int]] = []
    some = slice(first, last + 1)
    between = zip((-np.diff(time_s[some])).tolist(), np.diff(power_uw[some]).tolist(), strict=True)
    for rung, (gain, cost) in enumerate(between, start=first + 1):
        while found and (cost <= 0 or found[-1][1] * cost < gain * found[-1][2]):
            _, gain_before, cost_before = found.pop()
            gain, cost = gain + gain_before, cost + cost_before
        found.append((rung, gain, cost))
    to, gains, costs = zip(*found, strict=True) if found else ((), (), ())
    return Steps(
        np.array(to, dtype=np.int64), np.array(gains, dtype=float), np.array(costs, dtype=np.int64)
    )


def clock_ladder(job: SizingJob, gpus: int) -> Ladder | None:
    """Ladder of a job at one of its sizes; None: its table says nothing of it.

    Left out are clocks without a positive time and power, clocks that another one beats in both,
    and clocks above the efficient one that need more energy than the highest clock.
    """
    known = _known(job, gpus)
    if known is None:
        return None
    clocks, time_s, power_uw = known
    energy = time_s * power_uw
    worth = (energy <= energy[-1]) | (power_uw < power_uw[least_energy(time_s, power_uw)])
    order = np.lexsort((time_s, power_uw))
    order = order[worth[order]]
    fastest = np.minimum.accumulate(np.concatenate(([np.inf], time_s[order][:-1])))
    order = order[time_s[order] < fastest]
    return _ladder(tuple(clocks[i] for i in order), time_s[order], power_uw[order])


def least_ladder(job: SizingJob) -> Ladder:
    """Ladder of a job's least size; of which no time is known, one rung, its own clock."""
    ladder = clock_ladder(job, job.sizes[0])
    if ladder is not None:
        return ladder
    own = sized_at(job, job.sizes[0], job.own_clock_mhz)
    return _ladder((own.clock_mhz,), np.array([np.nan]), np.array([microwatts(own.power_w)]))


def _known(job: SizingJob, gpus: int) -> tuple[list[int | None], FloatArray, IntArray] | None:
    """(clocks, time, power) of a size, ascending by clock, where both are known and positive."""
    row = job.table.row(gpus) if job.table is not None else None
    if job.table is None or row is None:
        return None
    clocks: list[int | None]
    if job.clocks_mhz is None:
        clocks = [int(clock) for clock in job.table.clocks_mhz]
        columns = np.arange(len(clocks))
    else:
        clocks = list(job.clocks_mhz) or [None]
        columns = np.array([job.table.column(clock) for clock in clocks])
    time_s, power_w = job.table.time_s[row, columns], job.table.power_w[row, columns]
    good = np.isfinite(time_s) & np.isfinite(power_w) & (time_s > 0) & (power_w > 0)
    if not good.any():
        return None
    power_uw = np.ceil(MICRO * np.minimum(power_w[good], MOST_W)).astype(np.int64)
    return [clocks[i] for i in np.flatnonzero(good)], time_s[good], power_uw


def _ladder(clocks: tuple[int | None, ...], time_s: FloatArray, power_uw: IntArray) -> Ladder:
    efficient = least_energy(time_s, power_uw) or 0
    below = steps(time_s, power_uw, 0, efficient)
    above = steps(time_s, power_uw, efficient, len(clocks) - 1)
    return Ladder(clocks, time_s, power_uw, efficient, below, above)
