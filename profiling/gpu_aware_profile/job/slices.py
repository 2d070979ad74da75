"""Slices of a measured job: time per iteration and power, by SM clock. Pure.

A job appends a byte to a file at the end of each iteration. The file's size is the number of
iterations, and its modification time that of the last one; so a slice begins and ends exactly at an
iteration, however rarely it is looked at. A job that marks nothing is cut by time alone: then its
power is known, and no time per iteration.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

CLOCK_STEP_MHZ = 15
"""Clocks of NVIDIA's GPUs are multiples of it, up to rounding."""
_SAME_CLOCK = 0.05
"""A slice whose clock varied by a larger share is of no single clock."""
_MOST = 10_000


class Reading(NamedTuple):
    """State of the job's GPUs on this node at one moment."""

    at_s: float
    """Any steady clock."""
    marks: int
    """Iterations that were marked."""
    marked_at_s: float
    """Time of the last mark, on any clock of its own."""
    sm_mhz: float | None
    """Mean over the GPUs."""
    energy_j: float | None
    """Sum of the GPUs' counters; None: one has no counter."""
    power_w: float | None
    """Sum over the GPUs at this moment."""


class Slice(NamedTuple):
    """A part of the run."""

    duration_s: float
    iterations: int
    """0: none was marked."""
    time_s: float | None
    """Time of one iteration."""
    power_w: float | None
    """Mean of all GPUs of the node together."""
    sm_mhz: float | None
    """None: not known, or it changed within the slice."""


class Slices:
    """Cuts readings into slices of at least ``length_s``; at most 10,000, then they are longer."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._open: list[Reading] = []
        self._found: list[Slice] = []

    def add(self, reading: Reading) -> None:
        """Take the next reading."""
        first = self._open[0] if self._open else None
        if first is not None and first.marks == 0 < reading.marks:
            # What came before the first iteration is the start of the program.
            self._open, self._found = [], []
        self._open.append(reading)
        begin = self._open[0]
        if reading.at_s - begin.at_s < self._length_s:
            return
        if begin.marks and reading.marks == begin.marks:
            return  # in the middle of a long iteration
        self._found.append(_slice(self._open))
        self._open = [reading]
        if len(self._found) == _MOST:
            self._length_s *= 2.0
            del self._found[::2]

    def found(self) -> list[Slice]:
        """The slices so far, oldest first; what is left at the end is none."""
        return list(self._found)


def _slice(readings: list[Reading]) -> Slice:
    begin, end = readings[0], readings[-1]
    lasted = end.at_s - begin.at_s
    iterations = end.marks - begin.marks
    worked = end.marked_at_s - begin.marked_at_s
    clocks = [one.sm_mhz for one in readings if one.sm_mhz is not None]
    mean = statistics.fmean(clocks) if clocks else None
    steady = mean and max(clocks) - min(clocks) <= _SAME_CLOCK * mean
    return Slice(
        lasted,
        iterations,
        worked / iterations if iterations and worked > 0.0 else None,
        _power_w(readings, lasted),
        mean if steady else None,
    )


def _power_w(readings: list[Reading], lasted: float) -> float | None:
    first, last = readings[0].energy_j, readings[-1].energy_j
    if first is not None and last is not None and last > first:
        return (last - first) / lasted
    known = [one.power_w for one in readings if one.power_w is not None]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class AtClock:
    """What a job does at one clock: medians over its slices there."""

    clock_mhz: int
    slices: int
    iterations: int
    time_s: float | None
    power_w: float | None


def by_clock(slices: Iterable[Slice]) -> list[AtClock]:
    """Slices of one clock together, lowest clock first; those without a steady clock are left out.

    Where some slices have iterations, those without any (a pause, a checkpoint) do not count.
    """
    known = [one for one in slices if one.sm_mhz is not None]
    if any(one.iterations for one in known):
        known = [one for one in known if one.iterations]
    groups: dict[int, list[Slice]] = {}
    for one in known:
        clock = CLOCK_STEP_MHZ * round((one.sm_mhz or 0.0) / CLOCK_STEP_MHZ)
        groups.setdefault(clock, []).append(one)
    return [
        AtClock(
            clock,
            len(own),
            sum(one.iterations for one in own),
            _median(one.time_s for one in own),
            _median(one.power_w for one in own),
        )
        for clock, own in sorted(groups.items())
    ]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
