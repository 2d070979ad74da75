"""Texts on the energy that jobs' GPUs took, in ``explain`` and ``report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu_aware.cli.output import paragraph, some, table

_MOST_ROWS = 40
_SHOWN = 3  # reasons for an energy that is not known


def energy_text(energy: Mapping[str, Any] | None) -> str:
    """``1.24 kWh in 2 runs, 231 W per GPU``; empty: no epilog has recorded any."""
    if not energy:
        return ""
    gaps = some(energy["unknown"], _SHOWN) if energy["unknown"] else ""
    if energy["mean_w_per_gpu"] is None:
        return f"not known ({gaps})" if gaps else ""
    runs = f" in {energy['runs']} runs" if energy["runs"] > 1 else ""
    text = f"{_amount(energy['energy_j'])}{runs}, {energy['mean_w_per_gpu']:.0f} W per GPU"
    return f"at least {text} (not known: {gaps})" if gaps else text


def saving_text(why: Mapping[str, Any]) -> str:
    """``about 12% at 1110 MHz, at most 2.6% slower``; empty: no clock was chosen to save energy."""
    one = why.get("energy")
    if not one:
        return ""
    return (
        f"about {one['saves']:.0%} at {one['clock_mhz']} MHz, at most {one['at_most']:.1%} slower"
    )


def energy_table(rows: Sequence[Mapping[str, Any]], days: int) -> str:
    """Energy by user and class; empty without rows."""
    if not rows:
        return ""
    head = (
        f"Energy of the GPUs of the jobs that ended in the last {days} days, from NVML at their"
        " start and end. Jobs whose account is not complete are not in the sums."
    )
    headers = ["by", "name", "jobs", "measured", "GPU hours", "kWh", "W per GPU"]
    cells = [
        (
            row["by"],
            row["name"],
            row["jobs"],
            row["measured"],
            f"{row['gpu_hours']:.1f}",
            f"{row['kwh']:.3f}",
            "" if row["mean_w"] is None else f"{row['mean_w']:.0f}",
        )
        for row in _shown(rows)
    ]
    return f"{paragraph(head)}\n\n{table(headers, cells, right=headers[2:])}"


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The users with the highest energy, all classes, the sum."""
    users = sorted((r for r in rows if r["by"] == "user"), key=lambda r: -float(r["kwh"]))
    return [*users[:_MOST_ROWS], *(r for r in rows if r["by"] != "user")]


def _amount(joules: float) -> str:
    return f"{joules / 3.6e6:.3g} kWh" if joules >= 3.6e5 else f"{joules / 3600:.3g} Wh"
