"""Texts on the energy that jobs' GPUs took, in ``explain`` and ``report``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_gpu_aware.cli.output import paragraph, some, table
from slurm_gpu_aware.features.energy.declared import EnergyConfig, SavingClock
from slurm_gpu_aware.model.facts import Facts

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


def clock_text(d: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """The clock that a placed job has: what its nodes refused is not shown as set."""
    if not d["clock_mhz"]:
        return "default"
    saving = Facts.read(d["why"]).of(SavingClock)
    limit = f", {saving.limit_w} W" if saving is not None and saving.limit_w else ""
    text = f"{d['clock_mhz']} MHz{limit}"
    for event in events:
        detail = event["detail"]
        refused = event["kind"] == "clock_failed" and detail.get("during") != "reset"
        at_start = detail.get("seq") is None and detail.get("call") != "orders"
        if refused and at_start and event["at"] >= int(d["decided_at"]):
            where = f" on {detail['node']}" if detail.get("node") else ""
            return f"default{where}, {text} was not set: {detail.get('error') or 'refused'}"
    return text


CHOSEN: Mapping[str, Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], str]] = {
    "clock": clock_text
}
"""Line of ``explain`` on a placement -> its words, by the decision and the job's events."""
EXPLAINED: Mapping[str, Callable[[Any], str]] = {"energy": energy_text}
"""Key of the answer on a job, and line of ``explain`` -> its words."""


def energy_table(rows: Sequence[Mapping[str, Any]], days: int, config: EnergyConfig) -> str:
    """Energy by user, account and class, and what clocks have saved; empty without rows."""
    if not rows:
        return ""
    head = (
        f"Energy of the GPUs of the jobs that ended in the last {days} days, from NVML at their"
        " start and end. Jobs whose account is not complete are not in the sums."
    )
    saves = rows[-1]["saved_kwh"] != 0
    headers = ["by", "name", "jobs", "measured", "GPU hours", "kWh", "W per GPU"]
    headers += ["saved kWh", "GPU hours lost"] if saves else []
    cells = [
        (
            row["by"],
            row["name"],
            row["jobs"],
            row["measured"],
            f"{row['gpu_hours']:.1f}",
            f"{row['kwh']:.3f}",
            "" if row["mean_w"] is None else f"{row['mean_w']:.0f}",
            *((_with_error(row), f"{row['lost_gpu_hours']:.1f}") if saves else ()),
        )
        for row in _shown(rows)
    ]
    saved = f"\n\n{paragraph(_saved(rows[-1], config))}" if saves else ""
    return f"{paragraph(head)}\n\n{table(headers, cells, right=headers[2:])}{saved}"


def checked_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What clocks cost and save by models, and by the marks of jobs; empty without rows."""
    if not rows:
        return ""
    headers = ["checked", "jobs", "too slow", "fitted anew"]
    headers += ["slower", "measured", "saves", "measured"]
    cells = [
        (
            row["name"],
            row["jobs"],
            row["slow"],
            row["fitted"],
            *(f"{row[key]:.1%}" for key in ("slower", "measured_slower", "saves")),
            "" if row["measured_saves"] is None else f"{row['measured_saves']:.1%}",
        )
        for row in rows[:_MOST_ROWS]
    ]
    head = (
        "Clocks that save energy, by the models and as jobs measured them; those that were slower"
        " than allowed got their default clock back, and their models are fitted anew."
    )
    return f"{paragraph(head)}\n\n{table(headers, cells, right=headers[1:])}"


def _with_error(row: Mapping[str, Any]) -> str:
    return f"{row['saved_kwh']:.3f} +- {row['saved_error_kwh']:.3f}"


def _saved(row: Mapping[str, Any], config: EnergyConfig) -> str:
    """What clocks have saved, in all units of the site."""
    kwh = row["saved_kwh"]
    parts = [f"{_with_error(row)} kWh"]
    if config.price_kwh is not None:
        parts.append(f"{kwh * config.price_kwh:.2f} at {config.price_kwh:g} per kWh")
    if config.co2_kg_kwh is not None:
        parts.append(f"{kwh * config.co2_kg_kwh:.1f} kg CO2")
    return (
        f"Clocks that save energy saved {', '.join(parts)}, for {row['lost_gpu_hours']:.1f} GPU"
        " hours more: measured energy beside that of the default clock by the performance models,"
        " with their held-out error."
    )


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The users and the accounts with the highest energy, all classes, the sum."""
    most = sorted(rows, key=lambda r: -float(r["kwh"]))
    users, accounts = ([r for r in most if r["by"] == by] for by in ("user", "account"))
    rest = [r for r in rows if r["by"] in ("class", "all")]
    return [*users[:_MOST_ROWS], *accounts[:_MOST_ROWS], *rest]


def _amount(joules: float) -> str:
    return f"{joules / 3.6e6:.3g} kWh" if joules >= 3.6e5 else f"{joules / 3600:.3g} Wh"
