"""Speeds and powers of a job by its number of GPUs, without those that are never worth it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.size_table import SizeTable

_ROUNDING = 1e-12  # Times of two sizes that differ by less are the same: their speeds may be equal.


@dataclass(frozen=True, eq=False)
class Speeds:
    """Sizes of a job, each faster than the ones before.

    A size below 1 is a share of one GPU. Power may be any cost per time.
    """

    gpus: FloatArray  # (K,) ascending.
    speed: FloatArray  # (K,) units of work per time, ascending.
    power: FloatArray  # (K,) cost per time.

    def __post_init__(self) -> None:
        if not 0 < len(self.gpus) == len(self.speed) == len(self.power):
            raise ValueError("gpus, speed and power must have the same length, 1 or more")
        if not (np.all(self.gpus > 0) and np.all(self.speed > 0) and np.all(self.power >= 0)):
            raise ValueError("gpus and speeds must be positive, powers not negative")
        if np.any(np.diff(self.gpus) <= 0) or np.any(np.diff(self.speed) <= 0):
            raise ValueError("gpus and speeds must ascend")

    @cached_property
    def unit_time(self) -> FloatArray:
        """(K,) time of a unit of work."""
        return 1 / self.speed

    @cached_property
    def unit_cost(self) -> FloatArray:
        """(K,) cost of a unit of work, Q in the paper."""
        return self.power / self.speed

    @cached_property
    def unit_gain(self) -> FloatArray:
        """(K - 1,) time that a unit of work saves at the next size, S in the paper."""
        return self.unit_time[:-1] - self.unit_time[1:]

    @cached_property
    def price(self) -> FloatArray:
        """(K - 1,) cost of a unit of time that the next size saves, Phi in the paper.

        It ascends if no size is dominated.
        """
        return np.diff(self.unit_cost) / self.unit_gain

    @cached_property
    def undominated(self) -> Speeds:
        """The sizes that some work is best done at.

        In time and cost of a unit of work they are the lower convex hull, from the fastest to the
        cheapest: a mixture of two other sizes is as fast as any size above it, and not dearer.
        """
        kept: list[int] = []
        for k in reversed(range(len(self.gpus))):
            if kept and self.unit_cost[k] >= self.unit_cost[kept[-1]]:
                continue
            while len(kept) > 1 and self._price(k, kept[-1]) >= self._price(kept[-1], kept[-2]):
                kept.pop()
            kept.append(k)
        if len(kept) == len(self.gpus):
            return self
        chosen = kept[::-1]
        return Speeds(self.gpus[chosen], self.speed[chosen], self.power[chosen])

    def _price(self, slow: int, fast: int) -> float:
        cost = self.unit_cost[fast] - self.unit_cost[slow]
        return float(cost / (self.unit_time[slow] - self.unit_time[fast]))

    def at_least(self, gpus: float) -> Speeds | None:
        """The sizes that are not below this one; None: there is none."""
        first = int(np.searchsorted(self.gpus, gpus))
        if first == 0:
            return self
        if first == len(self.gpus):
            return None
        return Speeds(self.gpus[first:], self.speed[first:], self.power[first:])


@lru_cache(maxsize=1024)  # jobs of an application share a table
def speeds_of(
    table: SizeTable, clock_mhz: int | None = None, sizes: tuple[int, ...] | None = None
) -> Speeds | None:
    """Speeds, per s, and powers, W, of a size table at a clock; None: the table knows none.

    ``sizes``: those that count; None: all. One that is not faster than all smaller ones is left
    out.
    """
    column = table.column(clock_mhz)
    time_s, power_w = table.time_s[:, column], table.power_w[:, column]
    good = np.isfinite(time_s) & np.isfinite(power_w) & (time_s > 0) & (power_w > 0)
    if sizes is not None:
        good &= np.isin(table.gpus, sizes)
    best = np.minimum.accumulate(np.where(good, time_s, np.inf))
    good &= time_s * (1 + _ROUNDING) < np.concatenate(([np.inf], best[:-1]))
    if not good.any():
        return None
    return Speeds(table.gpus[good].astype(float), 1 / time_s[good], power_w[good])
