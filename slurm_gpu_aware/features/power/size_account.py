"""Account of size and clock: what a GPU step or a clock step more would have brought and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.plan import PlanSettings


def size_account(
    table: SizeTable, gpus: int, clock_mhz: int | None, *, more_gpus: int | None, free_clock: bool
) -> dict[str, Any] | None:
    """Power of a job, and the gain and cost of one step more; None: the table does not say.

    Parameters
    ----------
    more_gpus : the next number of GPUs that the job may get; None: there is none.
    free_clock : the clock may be chosen, so a step of the clock is told, too.
    """
    row, column = table.row(gpus), table.column(clock_mhz)
    if row is None or not math.isfinite(table.time_s[row, column] * table.power_w[row, column]):
        return None
    found: dict[str, Any] = {"gpus": gpus, "power_w": round(float(table.power_w[row, column]), 1)}
    if clock_mhz is not None:
        found["clock_mhz"] = clock_mhz
    if table.source:
        found["model"] = table.source
    above = None if more_gpus is None else table.row(more_gpus)
    if above is not None and (step := _step(table, (row, column), (above, column))):
        found["more_gpus"] = {"gpus": more_gpus, **step}
    faster = free_clock and column + 1 < len(table.clocks_mhz)
    if faster and (step := _step(table, (row, column), (row, column + 1))):
        found["more_mhz"] = {"clock_mhz": int(table.clocks_mhz[column + 1]), **step}
    return found


def _step(table: SizeTable, here: tuple[int, int], there: tuple[int, int]) -> dict[str, float]:
    """Gain in time and cost in energy of a step, percent; empty: not known."""
    time = float(table.time_s[there] / table.time_s[here])
    energy = time * float(table.power_w[there] / table.power_w[here])
    if not math.isfinite(time * energy):
        return {}
    return {
        "sooner_percent": round(100 * (1 - time), 1),
        "energy_percent": round(100 * (energy - 1), 1),
    }


def size_words(account: Mapping[str, Any]) -> str:
    """``2 GPUs at 1065 MHz (480 W); 4 GPUs would end it 35% sooner for 12% more energy``."""
    gpus = account["gpus"]
    text = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    if "clock_mhz" in account:
        text += f" at {account['clock_mhz']} MHz"
    text += f" ({account['power_w']:.0f} W)"
    if step := account.get("more_gpus"):
        text += f"; {step['gpus']} GPUs would end it {_step_words(step)}"
    if step := account.get("more_mhz"):
        text += f"; {step['clock_mhz']} MHz would end it {_step_words(step)}"
    return text


def _step_words(step: Mapping[str, float]) -> str:
    sooner, energy = step["sooner_percent"], step["energy_percent"]
    time = f"{abs(sooner):.0f}% {'sooner' if sooner >= 0 else 'later'}"
    return f"{time} for {abs(energy):.0f}% {'more' if energy >= 0 else 'less'} energy"


def with_account(request: Request, assignment: Assignment, settings: PlanSettings) -> Assignment:
    """The assignment with the account of its size and clock in ``why``, if its model is known."""
    table = request.table
    if table is None:
        return assignment
    account = size_account(
        table,
        request.gpus,
        assignment.clock_mhz,
        more_gpus=next((size for size in request.sizes if size > request.gpus), None),
        free_clock=settings.frees_clock(request.clock),
    )
    if account is None:
        return assignment
    summary = "; ".join(filter(None, [assignment.why.get("summary"), size_words(account)]))
    return replace(assignment, why={**assignment.why, "power": account, "summary": summary})
