"""Size table: time and power of a job by its number of GPUs, its SM clock and power limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.facets import Facet


def least_energy(time_s: FloatArray, power: FloatArray | IntArray) -> int | None:
    """Index of the least energy of a unit of work: the most efficient of some clocks.

    ``time_s``, ``power``: (F,) in any unit of power; what is missing or not positive is left out.
    Of equal energies the least time counts, then the first one. None: no energy is known.
    """
    energy = time_s * power
    known = np.isfinite(energy) & (time_s > 0) & (power > 0)
    if not known.any():
        return None
    return int(np.lexsort((time_s, np.where(known, energy, np.inf)))[0])


@dataclass(frozen=True, eq=False)
class LimitedSettings:
    """Settings with a power limit on each GPU, beside the clocks of a size table."""

    clocks_mhz: IntArray  # (L,) locked SM clocks.
    limits_w: IntArray  # (L,) power limits of each GPU.
    time_s: FloatArray  # (S, L) as of the table.
    power_w: FloatArray  # (S, L) as of the table.
    time_error: FloatArray  # (L,) as of the table.

    def __post_init__(self) -> None:
        count = len(self.clocks_mhz)
        for name in ("limits_w", "time_s", "power_w", "time_error"):
            if getattr(self, name).shape[-1:] != (count,):
                raise ValueError(f"{name} must have {count} settings")

    def known(self, rows: IntArray) -> LimitedSettings | None:
        """Those of some sizes that are known for all of these; None: there are none."""
        time_s, power_w = self.time_s[rows], self.power_w[rows]
        own = np.flatnonzero((np.isfinite(time_s) & np.isfinite(power_w)).all(axis=0))
        if not len(own):
            return None
        parts = self.clocks_mhz[own], self.limits_w[own], time_s[:, own], power_w[:, own]
        return LimitedSettings(*parts, self.time_error[own])


class Settings(NamedTuple):
    """Settings of one size: those with a power limit, then the clocks; the last is the default.

    Arrays of one length.
    """

    clocks_mhz: IntArray
    limits_w: IntArray  # 0: the site's own.
    time_s: FloatArray
    power_w: FloatArray
    error: FloatArray  # Relative error of the time; NaN: not known.


@dataclass(frozen=True, eq=False)
class SizeTable:
    """What a performance model predicts for one application on one GPU model.

    Jobs of the same application share one table; tables are compared by identity. The energy of an
    iteration is ``time_s * power_w`` (PowerFlow, E_iter).
    """

    gpus: IntArray  # (S,) numbers of GPUs, ascending.
    clocks_mhz: IntArray  # (F,) SM clocks that can be locked, ascending.
    time_s: FloatArray
    """(S, F) time of one iteration, or of any other unit of work; NaN: not known."""
    power_w: FloatArray  # (S, F) mean power of all GPUs of the job together; NaN: not known.
    source: str = ""  # Name of the model and its quality, in words.
    time_error: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(F,) relative error of the times at a clock; NaN, and (0,): it is not known."""
    limited: LimitedSettings | None = None
    """What is known under power limits of the GPUs; None: nothing."""

    def __post_init__(self) -> None:
        shape = (len(self.gpus), len(self.clocks_mhz))
        if min(shape) < 1 or self.time_s.shape != shape or self.power_w.shape != shape:
            raise ValueError(f"time_s and power_w must have the shape {shape}")
        if self.time_error.shape not in ((0,), shape[1:]):
            raise ValueError(f"time_error must have the shape {shape[1:]}, or (0,)")
        for name, axis in (("gpus", self.gpus), ("clocks_mhz", self.clocks_mhz)):
            if axis[0] < 1 or np.any(np.diff(axis) <= 0):
                raise ValueError(f"{name} must be positive and ascending")

    @cached_property
    def times(self) -> Mapping[int, float]:
        """GPU count -> time of an iteration at the default clock, where it is known. Units: s."""
        times = zip(self.gpus.tolist(), self.time_s[:, self.column(None)].tolist(), strict=True)
        return {gpus: time_s for gpus, time_s in times if 0 < time_s < math.inf}

    def row(self, gpus: int) -> int | None:
        """Row of a number of GPUs; None: the table does not have it."""
        found = int(np.searchsorted(self.gpus, gpus))
        return found if found < len(self.gpus) and self.gpus[found] == gpus else None

    def column(self, clock_mhz: int | None) -> int:
        """Column of the nearest SM clock; None, the default clock: the highest one.

        Without a lock a GPU runs at the highest clock that its power limit allows.
        """
        if clock_mhz is None:
            return len(self.clocks_mhz) - 1
        return int(np.argmin(np.abs(self.clocks_mhz - clock_mhz)))

    def settings(self, row: int) -> Settings:
        """All settings of one row."""
        count = len(self.clocks_mhz)
        error = self.time_error if self.time_error.size else np.full(count, np.nan)
        clocks = Settings(
            self.clocks_mhz, np.zeros(count, np.int64), self.time_s[row], self.power_w[row], error
        )
        one = self.limited
        if one is None:
            return clocks
        both = (one.clocks_mhz, one.limits_w, one.time_s[row], one.power_w[row], one.time_error)
        return Settings(*map(np.concatenate, zip(both, clocks, strict=True)))

    def at(self, row: int, clock_mhz: int | None, limit_w: int | None) -> tuple[float, float]:
        """(Time, power) of one size at the nearest setting; no limit: the site's own."""
        column, one = self.column(clock_mhz), self.limited
        if not limit_w or one is None:
            return float(self.time_s[row, column]), float(self.power_w[row, column])
        far_mhz = np.abs(one.clocks_mhz - self.clocks_mhz[column])
        nearest = np.lexsort((np.abs(one.limits_w - limit_w), far_mhz))[0]
        return float(one.time_s[row, nearest]), float(one.power_w[row, nearest])

    def up_to(self, clock_mhz: int) -> SizeTable:
        """The table without the clocks above one of its own."""
        to = self.column(clock_mhz) + 1
        parts = self.clocks_mhz[:to], self.time_s[:, :to], self.power_w[:, :to]
        return SizeTable(self.gpus, *parts, self.source, self.time_error[:to])

    def efficient_clock(self, gpus: int) -> int | None:
        """Most efficient SM clock of a number of GPUs, MHz; None: no energy is known."""
        row = self.row(gpus)
        best = None if row is None else least_energy(self.time_s[row], self.power_w[row])
        return None if best is None else int(self.clocks_mhz[best])


TABLE: Facet[SizeTable | None] = Facet("table", None, SizeTable)
"""Of a request: its time and power by GPU count and clock; None: no performance model is known."""
TABLES: Facet[Mapping[str, SizeTable]] = Facet("tables", {}, dict[str, SizeTable])
"""Of a request that may get GPUs of several models: each of them -> its table, all with iterations
of the same work; empty: there is one model, or not all are known."""
