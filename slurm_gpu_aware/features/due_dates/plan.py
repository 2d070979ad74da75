"""GPUs of one job with a due date, now and later, from the work of its earlier runs.

The job should be in time whatever its work, up to what its time limit allows. If that is more than
its largest size can do by then, it should be in time in as many cases as that size can: work beyond
them is lost in any case. Under this condition it should cost least energy: with one size for a job
that cannot be moved, with STS's optimal growth (`work`) for another one, restarts counted. A
growth that comes a little late, as GPUs were not free, must still do, and GPUs that are a little
slower than thought: plans keep a reserve. While few runs are known, longer ones are planned for.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.features.due_dates.work import (
    GrowthPlan,
    WorkDistribution,
    best_constant,
    empirical,
    optimum,
    uniform,
)
from slurm_gpu_aware.features.moves.declared import HAD_GPUS
from slurm_gpu_aware.features.sizes.speeds import Speeds, speeds_of
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, SizeTable

AT_ONCE_S = 1.0  # A size is left at once if its time is not longer than this, ...
RESTARTS = 5.0  # ... or than so many restarts, if the job does not run with it yet.
CASES = 100  # Of the epochs of a job without earlier runs, so many stand for all.
RESERVE = 2.0  # Restarts by which a plan with growth ends before the due date, if it can.
MARGIN = 0.02
"""Share of a job's time by which its plan ends before the due date, if it can: GPUs are not exactly
as fast as their scores say."""


@dataclass(frozen=True)
class DuePlan:
    """Sizes of a job with a due date. Times count from now. Units: s."""

    gpus: int  # Size that it should have now.
    in_time: float  # Probability of the due date; 0: no earlier run would have met it.
    runs: int
    """Earlier runs with more work than the job has done; 0: it has outlived all of them, or
    has none but epochs."""
    growth: tuple[tuple[float, int], ...] = ()  # (time, GPUs) of later sizes.
    longest_s: float = math.inf  # Time to the end of the most work for which the job is planned.
    least_s: float = math.inf
    """Time to the end of the most work with which it is in time with its largest number now."""
    by_epochs: bool = False
    """There is no earlier run: it may end after each of its epochs, all alike."""


@dataclass(frozen=True)
class _Option:
    """A plan, and the most work with which it is in time."""

    most: float
    plan: GrowthPlan
    restarts: int = 0


def due_plan(
    request: Request, now: float, *, slowdown: float = 1.0, running: bool = False
) -> DuePlan | None:
    """The sizes of a job; None: it has no due date, or nothing is known of its work.

    Parameters
    ----------
    request : with table and ``sizes``; without these the plan keeps its size. `DueDate.done`
        is the work done until now.
    slowdown : of the GPUs that it has or gets.
    running : it has ``request.gpus`` GPUs, and never gets fewer.
    """
    least = request.gpus if running else request.get(HAD_GPUS)
    due, speeds = request.get(DUE_DATE), _speeds(request, least)
    if due is None or speeds is None:
        return None
    work = _known(due, *_sized(request), request.time_limit_s)
    if not work.seen or (running and request.gpus not in speeds.gpus):
        return None
    time_left = (due.due_s - now) / slowdown
    options = list(_options(work, speeds, time_left, running=running, slowdown=slowdown))
    if not options:
        known = len(work.cases) > 0
        return DuePlan(request.gpus, 0.0, work.runs, by_epochs=work.by_epochs) if known else None
    best = max(options, key=lambda one: (one.most, -one.plan.cost))
    stays = running and best.plan.gpus[0] == request.gpus
    least_s = (best.most - work.done) * float(speeds.unit_time[-1]) * slowdown
    return _in_time_units(work, best, slowdown, least_s, stays=stays)


def due_work(request: Request, now: float) -> tuple[WorkDistribution, Speeds] | None:
    """Work left of a job, up to the most with which it can be in time, and its speeds.

    If it cannot be in time: up to its longest earlier run. A job that has outlived all of them has
    as much as its time limit allows. None: no due date, or nothing is known of the work.
    """
    due, speeds = request.get(DUE_DATE), _speeds(request)
    if due is None or speeds is None:
        return None
    work = _known(due, *_sized(request), request.time_limit_s)
    reach = work.reach(float(speeds.speed[-1]), due.due_s - now, 1.0)
    most = work.covered(reach)
    if most is None:
        most = min(float(work.cases.max(initial=0.0)) or math.inf, work.limit)
    else:
        most = work.planned(most, reach)
    return (work.left(most), speeds) if work.seen and most < math.inf else None


def work_rates(request: Request) -> dict[int, float]:
    """GPU count -> work of a job in a second on so many median GPUs.

    Of all counts that its size table knows, its sizes or not, in iterations; without sizes or table
    only of its own, in s of work.
    """
    return _rates(*_sized(request))


def _sized(request: Request) -> tuple[SizeTable | None, tuple[int, ...]]:
    """(Size table, sizes) of a job; without sizes or table: (None, its own size)."""
    table = request.get(TABLE) if request.sizes else None
    return (None, (request.gpus,)) if table is None else (table, request.sizes)


def _rates(table: SizeTable | None, sizes: tuple[int, ...]) -> dict[int, float]:
    if table is None:
        return dict.fromkeys(sizes, 1.0)
    return {gpus: 1 / time_s for gpus, time_s in table.times.items()}


class _Work:
    """The work of a job."""

    def __init__(
        self, due: DueDate, table: SizeTable | None, sizes: tuple[int, ...], time_limit_s: float
    ) -> None:
        self.done, self.restart_s = due.done, due.restart_s
        rates = _rates(table, sizes)
        works = (seconds * rates[gpus] for gpus, seconds in due.runs if gpus in rates)
        known = np.array(list(works), dtype=float)
        self.time_limit_s = time_limit_s
        limit = min(time_limit_s, due.limit_s) * rates[next(n for n in sizes if n in rates)]
        self.by_epochs = self.has_epochs = False
        if due.epochs is not None and due.epochs[1] in rates:
            epochs, gpus, seconds = due.epochs
            self.has_epochs = True
            limit = epochs * seconds * rates[gpus]
            if not len(known):
                self.by_epochs = True
                known = limit * np.linspace(0.0, 1.0, min(epochs, CASES) + 1)[1:]
        self.seen = len(known)
        self.cases: FloatArray = known[known > due.done]
        self.limit = limit if limit > due.done else math.inf
        """The most work that it may have: its epochs, or its time limit at its least size."""

    @property
    def runs(self) -> int:
        """Earlier runs with more work than the job has done."""
        return 0 if self.by_epochs else len(self.cases)

    def within_limit(self, speeds: Speeds, slowdown: float) -> Speeds:
        """The sizes at which all epochs end within the time limit; if none does, the largest."""
        if not self.has_epochs:
            return speeds
        longest_s = self.limit * speeds.unit_time * slowdown
        short = longest_s[:-1] > self.time_limit_s * (1 + 1e-9)
        return speeds.at_least(float(speeds.gpus[np.count_nonzero(short)])) or speeds

    def reach(self, speed: float, time_left: float, slowdown: float) -> float:
        """The most work that the job does in time at a speed."""
        reach = self.done + time_left * speed * (1 + 1e-9)
        if self.has_epochs:  # Slurm ends a run at its time limit
            reach = min(reach, self.time_limit_s / slowdown * speed * (1 + 1e-9))
        return reach

    def covered(self, reach: float) -> float | None:
        """The most work that may be asked of a job that is in time up to ``reach``; None: no case
        is in time."""
        if self.limit <= reach:
            return self.limit
        in_time = self.cases[self.cases <= reach]
        if len(in_time):
            return float(in_time.max())
        outlived = not len(self.cases) and math.isfinite(self.limit) and reach > self.done
        return reach if outlived else None

    def planned(self, most: float, reach: float) -> float:
        """The work for which a job is planned that should be in time up to ``most``.

        If all runs would be in time, up to (n + 1) / n of the longest of n: the end of a uniform
        distribution is expected there, and few runs say little of a longer one.
        """
        if most >= self.limit or self.by_epochs or not (self.cases <= most).any():
            return most
        beyond = most if (self.cases > most).any() else most * (self.seen + 1) / self.seen
        return min(beyond, reach, self.limit)

    def left(self, most: float) -> WorkDistribution:
        """The work, up to ``most``. It is longer than all n runs with probability 1 / (n + 1)."""
        if self._left.most != most:  # else it is asked for again
            self._left = replace(self._left, most=most)
        return self._left

    @cached_property
    def _left(self) -> WorkDistribution:
        """The work that is left: at first up to the most that it may have, then as of `left`."""
        if self.by_epochs:
            return uniform(self.limit, self.limit).given(self.done)
        seen = self.cases[self.cases < math.inf].max(initial=self.done)
        most = self.limit if self.limit < math.inf else 2 * float(seen)
        return empirical([*self.cases, math.inf], most).given(self.done)

    def in_time(self, most: float) -> float:
        """Share of the cases with at most this work; beyond all cases, of what is left."""
        if most >= self.limit:
            return 1.0
        if not len(self.cases):
            return (most - self.done) / (self.limit - self.done)
        return float(np.mean(self.cases <= most))


_known = lru_cache(maxsize=4096)(_Work)  # A round asks several times of each job.


def _speeds(request: Request, least: int = 0) -> Speeds | None:
    """Speeds of the sizes of a job from ``least`` on, of all if there is none; None: not known.

    Without sizes or table: of its only size, in s of work.
    """
    table, sizes = _sized(request)
    if table is None:
        return _alone(request.gpus)
    return speeds_of(table, tuple(size for size in sizes if size >= least) or sizes)


@lru_cache(maxsize=256)
def _alone(gpus: int) -> Speeds:
    one = np.ones(1)
    return Speeds(gpus * one, one, one)


def _options(
    work: _Work, speeds: Speeds, time_left: float, *, running: bool, slowdown: float
) -> Iterator[_Option]:
    """The plans that are in time in some case."""
    first = speeds.gpus[0] if running else 0.0
    whole = work.within_limit(speeds, slowdown)
    margin = MARGIN * (time_left + work.done * float(speeds.unit_time[0]))
    stay = Speeds(speeds.gpus[:1], speeds.speed[:1], speeds.power[:1]) if running else whole
    reach = work.reach(float(stay.speed[-1]), time_left, slowdown)
    if (most := work.covered(reach)) is not None:
        left = work.left(work.planned(most, reach))
        yield _Option(most, best_constant(left, stay, time_left - margin))
    if work.restart_s is None or len(speeds.gpus) < 2:
        return
    restarts = 0
    for _ in range(3):  # the plan tells how many restarts it needs
        time_s = time_left - restarts * work.restart_s / slowdown
        reach = work.reach(float(whole.speed[-1]), time_s, slowdown)
        most = work.covered(reach)
        if most is None:
            return
        reserve = RESERVE * work.restart_s / slowdown + margin
        plan = optimum(work.left(work.planned(most, reach)), whole, time_s - reserve)
        needed = len(plan.gpus) - 1 + (running and plan.gpus[0] > first)
        if needed <= restarts:
            yield _Option(most, plan, needed)
            return
        restarts = needed


def _in_time_units(
    work: _Work, best: _Option, slowdown: float, least_s: float, *, stays: bool
) -> DuePlan:
    """The plan in times; ``stays``: the job runs with its first size."""
    plan, restart_s = best.plan, work.restart_s or 0.0
    leaves = [time * slowdown for time in plan.leaves]
    start, short_s = 0, max(RESTARTS * restart_s, AT_ONCE_S)
    while start + 1 < len(leaves) and leaves[start] <= (
        AT_ONCE_S if stays and start == 0 else short_s
    ):
        start += 1
    later = range(start + 1, len(leaves))
    return DuePlan(
        int(plan.gpus[start]),
        work.in_time(best.most),
        work.runs,
        tuple(
            (float(leaves[i - 1] + restart_s * (i - start - 1)), int(plan.gpus[i])) for i in later
        ),
        float(leaves[-1] + restart_s * best.restarts),
        least_s,
        work.by_epochs,
    )
