"""Frontier of energy and time: which clocks are worth a choice, and which one to take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.size_table import SizeTable, least_energy


class Point(NamedTuple):
    """Time, power and energy of an iteration at one clock."""

    clock_mhz: int
    time_s: float
    power_w: float
    energy_j: float


def points(table: SizeTable, row: int = 0) -> list[Point]:
    """The known clocks of one size, ascending."""
    found = []
    for clock, time, power in zip(
        table.clocks_mhz, table.time_s[row], table.power_w[row], strict=True
    ):
        if np.isfinite(time) and np.isfinite(power) and time > 0 and power > 0:
            found.append(Point(int(clock), float(time), float(power), float(time * power)))
    return found


def frontier(known: list[Point]) -> list[Point]:
    """Points that no other one beats in time and in energy, fastest first."""
    kept: list[Point] = []
    for point in sorted(known, key=lambda p: (p.time_s, p.energy_j, p.clock_mhz)):
        if not kept or point.energy_j < kept[-1].energy_j:
            kept.append(point)
    return kept


def efficient_point(known: list[Point]) -> Point | None:
    """The point with the least energy; None: nothing is known."""
    times, watts = (np.array([p[i] for p in known], dtype=np.float64) for i in (1, 2))
    best = least_energy(times, watts)
    return None if best is None else known[best]


def at_most_slower(known: list[Point], slowdown: float) -> Point | None:
    """The least energy among points at most ``slowdown`` (0.1: 10%) slower than the highest clock.

    None: nothing is known.
    """
    if not known:
        return None
    longest = known[-1].time_s * (1.0 + slowdown)
    return efficient_point([p for p in known if p.time_s <= longest])
