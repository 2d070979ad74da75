"""Stage of a round: each job gets the clock that saves most within its bound on time.

A clock of the user, the class or Slurm's ``--gpu-freq`` stays. Under a power limit a job whose
clock the round chooses gets none above this one, so other jobs have the power that it saves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.energy.choice import Choice, least_energy_within
from slurm_gpu_aware.features.energy.hints import OWN_CLOCK, SLOWER
from slurm_gpu_aware.features.energy.settings import EnergyConfig
from slurm_gpu_aware.features.power.power_budget import POWER
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.job_hints import HINTED
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.stages import Stage

SETTINGS = Facet("energy", EnergyConfig(), EnergyConfig)
_WHY = "energy"
"""Key of an assignment's account."""
_CHOSEN: Facet[Mapping[str, tuple[int, Choice, float]]] = Facet("clocks that save energy", {})
"""Of a round: job -> its clock, MHz, what it brings, and how much slower it may be."""


class Account(Protocol):
    """A placement with its account: of a round, or of the ledger."""

    @property
    def why(self) -> Mapping[str, Any]: ...


class Clocks(Stage):
    """Jobs run at the clock with the least energy within the bound of the site."""

    name = "clocks that save energy"
    inputs = (SETTINGS,)
    reads = (TABLE, HINTED, OWN_CLOCK)
    optional = True

    def before(self, one: Round) -> Round:
        """The queue with these clocks, and the run times that they bring."""
        chosen: dict[str, tuple[int, Choice, float]] = {}
        queue = []
        for request in one.queue:
            found = None if _is_fixed(request, one) else _chosen(request, one)
            if found is not None:
                chosen[request.job_id] = found
                request = _slowed(request, one, *found[:2])
            queue.append(request)
        return replace(one, queue=queue).put(_CHOSEN, chosen) if chosen else one

    def after(self, one: Round) -> Round:
        """The plan with what each clock brings."""
        chosen = one.get(_CHOSEN)
        if not chosen:
            return one
        assignments = tuple(
            _told(a, *chosen[a.job_id]) if a.job_id in chosen else a for a in one.plan.assignments
        )
        return replace(one, plan=replace(one.plan, assignments=assignments))


def clock_factor(why: Mapping[str, Any]) -> float:
    """Time of a job at the clock that was chosen for it / at the default clock."""
    return 1.0 + float((why.get(_WHY) or {}).get("slower", 0.0))


def chosen_clock(placed: Account | None) -> int | None:
    """The clock that was chosen for a job, by its placement, MHz; None: none was."""
    found = None if placed is None else placed.why.get(_WHY)
    return int(found["clock_mhz"]) if found else None


def allowed_slowdown(placed: Account | None) -> float:
    """How much slower that clock may be; inf: none was chosen, or an earlier release chose it."""
    found = None if placed is None else placed.why.get(_WHY)
    return float(found.get("allowed", math.inf)) if found else math.inf


@lru_cache(maxsize=1 << 10)
def doubted(table: SizeTable) -> SizeTable:
    """The table without the errors of its times: no clock is chosen by it to save energy."""
    return replace(table, time_error=np.zeros(0))


def bounded(table: SizeTable | None, clock_mhz: int | None) -> SizeTable | None:
    """The table of a job without the clocks above the one that was chosen for it."""
    return table if table is None or clock_mhz is None else _up_to(table, clock_mhz)


def _is_fixed(request: Request, one: Round) -> bool:
    """Whether something else decides on the clock of a job."""
    named = request.clock not in (None, "auto") or request.get(OWN_CLOCK)
    return named or request.left is not None or request.app_class in one.settings.class_clock_mhz


def _chosen(request: Request, one: Round) -> tuple[int, Choice, float] | None:
    """The clock of a job that saves energy; None: there is none, or it is not known."""
    given = request.get(HINTED).get(SLOWER)
    bound = one.get(SETTINGS).of_class(request.app_class) if given is None else given / 100.0
    table = request.get(TABLE)
    if table is None or not bound:
        return None
    found = best_clock(table, request.least_gpus, bound)
    if found is None:
        return None
    expected_s = request.expected_s * (1.0 + found[1].at_most)
    due = request.get(DUE_DATE)
    late = due is not None and one.now + expected_s > due.due_s
    # A job that is expected to take its whole limit has no estimate of its own.
    cut_off = request.expected_s < request.time_limit_s < expected_s
    return None if late or cut_off else (*found, bound)


@lru_cache(maxsize=1 << 10)  # jobs share tables
def best_clock(table: SizeTable, gpus: int, bound: float) -> tuple[int, Choice] | None:
    """The clock with the least energy at most ``bound`` slower than the default one, MHz."""
    row = table.row(gpus)
    if row is None or not table.time_error.size:
        return None
    time_s, power_w = table.time_s[row], table.power_w[row]
    default = table.column(None)
    # Of both times the error counts: that of the default one is not known better.
    error = np.hypot(table.time_error, table.time_error[default])
    found = least_energy_within(time_s, time_s * power_w, error, default, bound)
    return None if found is None else (int(table.clocks_mhz[found.at]), found)


def _slowed(request: Request, one: Round, clock_mhz: int, choice: Choice) -> Request:
    """The request with its clock, or with none above it where the round chooses under a limit."""
    if request.estimate_s is not None:
        request = replace(request, estimate_s=request.estimate_s * (1.0 + choice.slower))
    power = one.get(POWER)
    limited = power is not None and math.isfinite(power.limit_w)
    if limited and one.settings.frees_clock(request.clock):
        return request.put(TABLE, bounded(request.get(TABLE), clock_mhz))
    return replace(request, clock=clock_mhz)


@lru_cache(maxsize=1 << 10)
def _up_to(table: SizeTable, clock_mhz: int) -> SizeTable:
    return table.up_to(clock_mhz)


def _told(assignment: Assignment, clock_mhz: int, choice: Choice, bound: float) -> Assignment:
    """The assignment with what its clock brings; another clock, under a limit, is not counted."""
    if assignment.clock_mhz is None:
        return assignment
    shares = {"saves": choice.saves, "slower": choice.slower, "at_most": choice.at_most}
    shares["allowed"] = bound
    account = {"clock_mhz": clock_mhz, **{name: round(v, 4) for name, v in shares.items()}}
    why = {**assignment.why, _WHY: account}
    return replace(assignment, why=why, slowdown=assignment.slowdown * clock_factor(why))
