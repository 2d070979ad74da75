"""Sizes of jobs: those that are worth having, the steps from GPU to GPU, and what each job gets.

Ladders: the clocks of a size, or the sizes of a job, that are worth a step up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.size_table import SizeTable, least_energy


@dataclass(frozen=True, eq=False)
class SizingJob:
    """One job as a consumer of GPUs and power."""

    job_id: str
    sizes: tuple[int, ...]
    """GPU counts that it may get, ascending. A running job that keeps its GPUs: only theirs."""
    max_w: float
    """Power limits of its GPUs at the least size: what it counts with if its table says nothing."""
    table: SizeTable | None = None
    """None: no model is known; the job gets its least size and the clock that it asked for."""
    clocks_mhz: tuple[int, ...] | None = None
    """SM clocks that it may get; None: all of its table; empty: the default clock, without a lock.
    One: a fixed clock, in the table or not."""
    work: float = 1.0
    """Units of work that are left (iterations, if the table counts these). Equal for all jobs: a
    gain of a second counts alike in all."""
    order: float = 0.0
    """Jobs get their least size in ascending order; equal: the least energy of a unit of work
    first."""
    must_run: bool = False
    """It runs, or has to start: it gets its least size whatever the limit, and a clock below its
    most efficient one if the limit leaves no other choice."""

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or sorted(set(self.sizes)) != list(self.sizes):
            raise ValueError(f"job {self.job_id}: sizes must be positive and ascending")
        if not (0 <= self.work < math.inf and self.max_w >= 0):
            raise ValueError(f"job {self.job_id}: work and max_w must be finite and not negative")

    @property
    def own_clock_mhz(self) -> int | None:
        """Its clock where no clock is chosen: the fixed one, or None, the default clock."""
        return self.clocks_mhz[0] if self.clocks_mhz and len(self.clocks_mhz) == 1 else None


@dataclass(frozen=True)
class Sized:
    """What a job gets."""

    gpus: int  # 0: the job waits.
    clock_mhz: int | None = None  # SM clock to lock; None: the default clock.
    time_s: float = float("nan")  # Time of a unit of work; NaN: not known, or the job waits.
    power_w: float = 0.0
    waits_for: str = ""  # ``GPUs`` or ``power``, if it waits.

    @property
    def energy_j(self) -> float:
        """Energy of a unit of work."""
        return self.time_s * self.power_w


@dataclass(frozen=True)
class Allocation:
    """What all jobs get."""

    jobs: Mapping[str, Sized]  # Job ID -> what it gets, in the order of the jobs given.
    power_w: float  # Power of all jobs and of the GPUs without a job.


def allocation(
    jobs: Sequence[SizingJob], sized: Sequence[Sized], gpus: int, idle_w: float
) -> Allocation:
    """Allocation of what each of the jobs gets, on a cluster of ``gpus`` GPUs."""
    idle = gpus - sum(one.gpus for one in sized)
    return Allocation(
        {job.job_id: one for job, one in zip(jobs, sized, strict=True)},
        math.fsum(one.power_w for one in sized) + idle * idle_w,
    )


def sized_at(job: SizingJob, gpus: int, clock_mhz: int | None) -> Sized:
    """A job at one size and clock; its power is its ``max_w`` where the table does not say."""
    time_s, power_w = math.nan, math.nan
    if job.table is not None and (row := job.table.row(gpus)) is not None:
        cell = row, job.table.column(clock_mhz)
        time_s, power_w = float(job.table.time_s[cell]), float(job.table.power_w[cell])
    return Sized(
        gpus,
        clock_mhz,
        time_s if 0 < time_s < math.inf else math.nan,
        power_w if 0 < power_w < math.inf else job.max_w / job.sizes[0] * gpus,
    )


MICRO = 1_000_000
MOST_W = 1e8  # Power above this is taken as this: sums of it stay exact.


def microwatts(power_w: float) -> int:
    """Whole microwatts, rounded up: sums of them are exact and never below the true power."""
    return math.ceil(MICRO * min(power_w, MOST_W))


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps up a ladder, each with a smaller return than the one before (a convex hull).

    Where a later step has the larger return, the two are one step: taken alone, the first would
    hide the second.
    """

    to: IntArray  # (M,) rung that each step ends on.
    gain: FloatArray  # (M,) time saved of a unit of work, s; positive.
    cost: IntArray  # (M,) power added, µW; 0 or less: the step costs nothing.


@dataclass(frozen=True, eq=False)
class Ladder:
    """Clocks of one size: each rung is faster than the one below it and draws more power."""

    clocks_mhz: tuple[int | None, ...]  # (R,) SM clocks; None: the default clock.
    time_s: FloatArray  # (R,) falling; NaN, in a ladder of one rung: not known.
    power_uw: IntArray  # (R,) rising.
    efficient: int  # Rung with the least energy of a unit of work.
    below: Steps  # Steps from the lowest rung to the efficient one.
    above: Steps  # Steps from the efficient rung to the highest one.

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


@dataclass(frozen=True, eq=False)
class Menu:
    """Sizes of a job, each faster than the smaller ones, all at their most efficient clocks."""

    sizes: tuple[int, ...]
    ladders: tuple[Ladder, ...]  # Clocks of each size.
    power_uw: IntArray  # (S,) power of each size, without that of its GPUs when idle.
    growth: Steps  # Steps from the least size up; a rung is an index of ``sizes``.
    first_j: float  # Energy of a unit of work at the least size; inf: not known.


@dataclass(frozen=True, eq=False)
class GpuSteps:
    """Steps that give GPUs, in their order; it does not depend on any power limit."""

    job: IntArray  # (K,) index of the job.
    size: IntArray  # (K,) index of its new size in its menu.
    spent_uw: IntArray  # (K,) power after the step, less that before the first one.
    gpus: IntArray  # (K,) GPUs in use after the step.
    first: int  # The first so many steps start a job, the others let one grow.

    def sizes_after(self, count: int) -> dict[int, int]:
        """Job -> index of its size after the first ``count`` steps."""
        return dict(zip(self.job[:count].tolist(), self.size[:count].tolist(), strict=True))

    def spent_after(self, count: int) -> int:
        """Power of the first ``count`` steps, µW."""
        return int(self.spent_uw[count - 1]) if count else 0


def menus(jobs: Sequence[SizingJob], idle_uw: int) -> list[Menu]:
    """Menu of each job; jobs that have the same table and choice share one."""
    known: dict[object, Menu] = {}
    found = []
    for job in jobs:
        key = (id(job.table), job.sizes, job.clocks_mhz, job.max_w)
        if key not in known:
            known[key] = _menu(job, idle_uw)
        found.append(known[key])
    return found


def _menu(job: SizingJob, idle_uw: int) -> Menu:
    sizes, ladders = [job.sizes[0]], [least_ladder(job)]
    for gpus in job.sizes[1:]:
        ladder = clock_ladder(job, gpus)
        if ladder is not None and ladder.efficient_s < ladders[-1].efficient_s:
            sizes.append(gpus)
            ladders.append(ladder)
    times = np.array([ladder.efficient_s for ladder in ladders])
    power_uw = np.array([ladder.efficient_uw for ladder in ladders]) - idle_uw * np.array(sizes)
    growth = steps(times, power_uw, 0, len(sizes) - 1)
    energy = ladders[0].efficient_s * ladders[0].efficient_uw / MICRO
    first_j = energy if math.isfinite(energy) else math.inf
    return Menu(tuple(sizes), tuple(ladders), power_uw, growth, first_j)


def gpu_steps(jobs: Sequence[SizingJob], offers: Sequence[Menu], gpus: int) -> GpuSteps:
    """First GPUs of the waiting jobs, then more GPUs by return, as far as ``gpus`` go.

    Jobs that must run have their least size already. First come steps that shorten a job at no
    cost, by time, then the others by time per power. Of a step for which GPUs are missing, the part
    is taken for which there are enough.
    """
    in_use = sum(job.sizes[0] for job in jobs if job.must_run)
    taken: list[tuple[int, int, int, int]] = []
    spent = 0
    placed = [i for i, job in enumerate(jobs) if job.must_run]
    waiting = [i for i, job in enumerate(jobs) if not job.must_run]
    for i in sorted(waiting, key=lambda i: (jobs[i].order, offers[i].first_j)):
        if in_use + jobs[i].sizes[0] <= gpus:
            in_use += jobs[i].sizes[0]
            spent += int(offers[i].power_uw[0])
            taken.append((i, 0, spent, in_use))
            placed.append(i)
    first = len(taken)
    size = dict.fromkeys(placed, 0)
    owner, to = _by_return(jobs, offers, sorted(placed))
    for i, rung in zip(owner.tolist(), to.tolist(), strict=True):
        held = offers[i].sizes[size[i]]
        while rung > size[i] and in_use + offers[i].sizes[rung] - held > gpus:
            rung -= 1
        if rung > size[i]:
            in_use += offers[i].sizes[rung] - held
            spent += int(offers[i].power_uw[rung] - offers[i].power_uw[size[i]])
            size[i] = rung
            taken.append((i, rung, spent, in_use))
    job, to_size, spent_uw, gpus_after = np.array(taken, dtype=np.int64).reshape(-1, 4).T
    return GpuSteps(job, to_size, spent_uw, gpus_after, first)


def _by_return(
    jobs: Sequence[SizingJob], offers: Sequence[Menu], placed: Sequence[int]
) -> tuple[IntArray, IntArray]:
    """(job, rung) of all growth steps, best return first; steps of a job keep their order."""
    owner, to, gain, cost = gathered({i: offers[i].growth for i in placed}, jobs)
    paid = cost > 0
    returns = np.divide(gain, cost, out=gain.copy(), where=paid)
    order = np.lexsort((-returns, paid))
    return owner[order], to[order]


def gathered(
    of: dict[int, Steps], jobs: Sequence[SizingJob]
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """(job, rung, gain in the work left, cost) of all steps of some jobs, in the order given."""
    if not of:
        none = np.empty(0, dtype=np.int64)
        return none, none, np.empty(0), none
    counts = [len(s.to) for s in of.values()]
    owner = np.repeat(np.fromiter(of, dtype=np.int64), counts)
    work = np.repeat(np.array([jobs[i].work for i in of]), counts)
    gain = np.concatenate([s.gain for s in of.values()]) * work
    to = np.concatenate([s.to for s in of.values()])
    return owner, to, gain, np.concatenate([s.cost for s in of.values()])
