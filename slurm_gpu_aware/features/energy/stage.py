"""Stage of a round: each job gets the setting that saves most within its bound on time.

A setting is an SM clock, and where the models know it a power limit of the GPUs with it.

A clock of the user, the class or Slurm's ``--gpu-freq`` stays. Under a power limit a job whose
clock the round chooses gets none above this one, so other jobs have the power that it saves; no
power limits of GPUs are chosen then.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.energy.declared import (
    OWN_CLOCK,
    SLOWER,
    EnergyConfig,
    SavingClock,
    SlowGpus,
)
from slurm_gpu_aware.features.power.power_budget import POWER
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.job_hints import HINTED
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.stages import Stage

EXACT = 0.0025  # Share to which times are measured.


class Choice(NamedTuple):
    """A setting with less energy than the default one. Shares, 0.1: 10%."""

    at: int  # Index of the setting.
    saves: float  # Energy less than at the default setting, as the model predicts it.
    slower: float  # Time more than at the default setting; below 0: it is faster.
    at_most: float  # The same at the upper end of the model's error.


def least_energy_within(
    time_s: FloatArray, energy: FloatArray, error: FloatArray, default: int, slowdown: float
) -> Choice | None:
    """The setting with the least energy that is at most ``slowdown`` slower than the default one.

    The bound holds for the upper end of the error, to a quarter of a point: times are not measured
    more exactly. What is not known or not positive is left out.
    Of equal energies the least time counts. None: no such setting needs less energy than the
    default one, or the default one is not known.

    Parameters
    ----------
    time_s, energy : (S,) of a unit of work, in any units; NaN: not known.
    error : (S,) relative error of the time against that of the default setting; NaN: not known.
    default : index of the default setting.
    """
    known = np.isfinite(time_s) & np.isfinite(energy) & (time_s > 0) & (energy > 0)
    if not known[default]:
        return None
    longer = np.where(known, time_s, np.inf) / time_s[default]
    spends = np.where(known, energy, np.inf) / energy[default]
    upper = longer * (1.0 + error)
    allowed = (upper <= 1.0 + slowdown + EXACT) & (spends < 1.0)
    if not allowed.any():
        return None
    best = int(np.lexsort((longer, np.where(allowed, spends, np.inf)))[0])
    return Choice(
        at=best,
        saves=float(1.0 - spends[best]),
        slower=float(longer[best] - 1.0),
        at_most=float(upper[best] - 1.0),
    )


SETTINGS = Facet("energy", EnergyConfig(), EnergyConfig)
_WORTH = 0.005
"""Share of the energy that a power limit saves more than a clock alone; measurements have noise."""


class Chosen(NamedTuple):
    """What was chosen for a job."""

    clock_mhz: int
    limit_w: int  # Power limit of each GPU; 0: the site's own.
    choice: Choice
    bound: float  # How much slower the job may be.


_CHOSEN: Facet[Mapping[str, Chosen]] = Facet("clocks that save energy", {})
"""Of a round: job -> what was chosen."""


class Clocks(Stage):
    """Jobs run at the clock with the least energy within the bound of the site."""

    name = "clocks that save energy"
    inputs = (SETTINGS,)
    reads = (TABLE, HINTED, OWN_CLOCK)
    optional = True

    def before(self, one: Round) -> Round:
        """The queue with these clocks, and the run times that they bring."""
        chosen: dict[str, Chosen] = {}
        queue = []
        for request in one.queue:
            found = setting_for(request, one)
            if found is not None:
                chosen[request.job_id] = found
                request = _slowed(request, one, found)
            queue.append(request)
        return replace(one, queue=queue).put(_CHOSEN, chosen) if chosen else one

    def after(self, one: Round) -> Round:
        """The plan with what each clock brings."""
        chosen = one.get(_CHOSEN)
        if not chosen:
            return one
        tables = {request.job_id: request.get(TABLE) for request in one.queue}
        assignments = tuple(
            _told(*_on_its_gpus(a, chosen[a.job_id], tables.get(a.job_id), one))
            if a.job_id in chosen
            else a
            for a in one.plan.assignments
        )
        return replace(one, plan=replace(one.plan, assignments=assignments))


def clock_factor(why: Facts) -> float:
    """Time of a job at the clock that was chosen for it / at the default clock."""
    found = why.of(SavingClock)
    return 1.0 if found is None else 1.0 + found.slower


def chosen_clock(placed: Assignment | None) -> int | None:
    """The clock that was chosen for a job, by its placement, MHz; None: none was."""
    found = None if placed is None else placed.why.of(SavingClock)
    return None if found is None else found.clock_mhz


def chosen_setting(why: Facts) -> tuple[int | None, float, int]:
    """(That clock, how much slower it may be, its power limit in W).

    Infinitely slower: none was chosen, or an earlier release chose it. 0 W: without a limit.
    """
    found = why.of(SavingClock)
    return (None, math.inf, 0) if found is None else (found.clock_mhz, found.allowed, found.limit_w)


@lru_cache(maxsize=1 << 10)
def doubted(table: SizeTable) -> SizeTable:
    """The table without the errors of its times: no clock is chosen by it to save energy."""
    return replace(table, time_error=np.zeros(0), limited=None)


def bounded(table: SizeTable | None, clock_mhz: int | None) -> SizeTable | None:
    """The table of a job without the clocks above the one that was chosen for it."""
    return table if table is None or clock_mhz is None else _up_to(table, clock_mhz)


def setting_for(request: Request, one: Round) -> Chosen | None:
    """The setting with which a job of a round saves energy; None: there is none."""
    if request.get(TABLE) is None or _is_fixed(request, one):  # most jobs have no table
        return None
    return _chosen(request, one)


def _is_fixed(request: Request, one: Round) -> bool:
    """Whether something else decides on the clock of a job."""
    named = request.clock not in (None, "auto") or request.get(OWN_CLOCK)
    return named or request.left is not None or request.app_class in one.settings.class_clock_mhz


def _chosen(request: Request, one: Round) -> Chosen | None:
    """The setting of a job that saves energy; None: there is none, or it is not known."""
    given = request.get(HINTED).get(SLOWER)
    bound = one.get(SETTINGS).of_class(request.app_class) if given is None else given / 100.0
    table = request.get(TABLE)
    if table is None or not bound:
        return None
    found = best_setting(table, request.least_gpus, bound, limits=not _is_limited(one))
    if found is None:
        return None
    expected_s = request.expected_s * (1.0 + found.choice.at_most)
    date = request.get(DUE_DATE)
    late = date is not None and one.now + expected_s > date.due_s
    # A job that is expected to take its whole limit has no estimate of its own.
    cut_off = request.expected_s < request.time_limit_s < expected_s
    return None if late or cut_off else found


@lru_cache(maxsize=1 << 10)  # jobs share tables
def best_setting(
    table: SizeTable, gpus: int, bound: float, *, limits: bool = True
) -> Chosen | None:
    """The setting with the least energy at most ``bound`` slower than the default one.

    ``limits``: whether it may have a power limit of the GPUs. It has one only if that saves half a
    point more than a clock alone.
    """
    row = table.row(gpus)
    if row is None:
        return None
    clocks, limits_w, time_s, power_w, error = table.settings(row)
    default = len(clocks) - 1
    # Of both times the error counts: that of the default one is not known better.
    error = np.hypot(error, error[default])
    alone = np.where(limits_w > 0, np.nan, error)
    best, found = (
        least_energy_within(time_s, time_s * power_w, one, default, bound)
        for one in (error if limits else alone, alone)
    )
    worth = _WORTH if best is not None and limits_w[best.at] > 0 else 0.0
    if best is not None and best.saves >= (found.saves if found is not None else 0.0) + worth:
        found = best
    return found and Chosen(int(clocks[found.at]), int(limits_w[found.at]), found, bound)


def _is_limited(one: Round) -> bool:
    """Whether a power limit of the site is in force."""
    power = one.get(POWER)
    return power is not None and math.isfinite(power.limit_w)


def _slowed(request: Request, one: Round, chosen: Chosen) -> Request:
    """The request with its clock, or with none above it where the round chooses under a limit."""
    if request.estimate_s is not None:
        request = replace(request, estimate_s=request.estimate_s * (1.0 + chosen.choice.slower))
    if _is_limited(one) and one.settings.frees_clock(request.clock):
        return request.put(TABLE, bounded(request.get(TABLE), chosen.clock_mhz))
    return replace(request, clock=chosen.clock_mhz)


@lru_cache(maxsize=1 << 10)
def _up_to(table: SizeTable, clock_mhz: int) -> SizeTable:
    return table.up_to(clock_mhz)


def _on_its_gpus(
    placed: Assignment, chosen: Chosen, table: SizeTable | None, one: Round
) -> tuple[Assignment, Chosen]:
    """The assignment and setting of a job; from the median, slow GPUs leave less slowdown.

    Where they leave none, the job has its default clock, and an account of that. Where Slurm
    chooses among GPUs, and under a power limit, the setting stays.
    """
    bound = (1.0 + chosen.bound) / placed.score - 1.0
    counts = one.get(SETTINGS).from_median and placed.exact and not _is_limited(one)
    if table is None or not counts or bound >= chosen.bound:
        return placed, chosen
    found = best_setting(table, placed.size, bound) if bound > 0.0 else None
    if found is None:
        placed = placed.explained(SlowGpus(round(placed.score - 1.0, 4), chosen.bound))
    return replace(placed, clock_mhz=found and found.clock_mhz), found or chosen


def _told(assignment: Assignment, chosen: Chosen) -> Assignment:
    """The assignment with what its clock brings; another clock, under a limit, is not counted."""
    if assignment.clock_mhz is None:
        return assignment
    choice, limit_w = chosen.choice, chosen.limit_w
    fact = SavingClock(
        chosen.clock_mhz,
        saves=round(choice.saves, 4),
        slower=round(choice.slower, 4),
        at_most=round(choice.at_most, 4),
        allowed=round(chosen.bound, 4),
        limit_w=limit_w,
    )
    slowdown = assignment.slowdown * (1.0 + fact.slower)
    assignment = replace(assignment, slowdown=slowdown, power_limit_w=limit_w or None)
    return assignment.explained(fact)
