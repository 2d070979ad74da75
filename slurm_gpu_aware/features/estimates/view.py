"""``gpu-aware report`` without a folder: what jobs took against what was expected."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from slurm_gpu_aware.cli.options import Context
from slurm_gpu_aware.cli.output import paragraph, print_json, say, table
from slurm_gpu_aware.clock_conf import ACCOUNTS
from slurm_gpu_aware.features.energy.text import checked_table, energy_table
from slurm_gpu_aware.files import user_name

_SOURCES = {
    "name": "same user and name",
    "user": "same user",
    "account": "same account",
    "limit": "time limit",
    "all": "all",
}
_MOST = 100_000  # decisions that a report reads
_MOST_USERS = 20


def report_site(context: Context, days: int, *, energy_alone: bool, as_json: bool) -> None:
    """Print how long jobs ran against what was expected, and what energy they took."""
    from slurm_gpu_aware.features.energy.accounts import KINDS, checked_rows, energy_rows
    from slurm_gpu_aware.features.energy.declared import EnergyConfig
    from slurm_gpu_aware.features.estimates.metrics import quality, quality_by_user
    from slurm_gpu_aware.selector.job_answers import open_reader

    config = context.config()
    with open_reader(config) as reader:
        decisions = reader.ledger.ended_decisions(time.time() - 86_400.0 * days, _MOST)
        first = min((decision.submitted_at for decision in decisions), default=time.time())
        events = reader.ledger.events_since(KINDS, first)
        note = reader.note()
    rows, energy = quality(decisions), energy_rows(decisions, events)
    users, checked = quality_by_user(decisions), checked_rows(decisions, events)
    if note:  # a reader of the public copy is an ordinary user
        users = [row for row in users if row["user"] == user_name(os.geteuid())]
    if as_json:
        times = {} if energy_alone else {"estimates": rows, "users": users}
        print_json({"days": days, **times, "energy": energy, "clocks": checked})
        return
    parts = [] if energy_alone else [_text(rows, days), _users_text(users) if users else ""]
    parts += [energy_table(energy, days, config.of(EnergyConfig)), checked_table(checked)]
    click.echo("\n\n".join(filter(None, parts)))
    if decisions and not energy:
        text = f"The energy of no job is known: accounts = {ACCOUNTS} in clock.conf of the nodes"
        say(paragraph(f"{text}, and our Prolog and Epilog, keep it (gpu-aware doctor)."))
    if note:
        say(note)


def _users_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Users with the most jobs; a median above 1: their jobs take longer than expected."""
    headers = ["user", "jobs", "first ones", "median", "10%", "90%", "ended in time"]
    cells = [
        (
            *(row[key] for key in ("user", "jobs", "cold")),
            *("" if row[key] is None else f"{row[key]:.2f}" for key in ("median", "p10", "p90")),
            "" if row["within"] is None else f"{row['within']:.0%}",
        )
        for row in rows[:_MOST_USERS]
    ]
    said = (
        "The same by user. First ones were expected to take their limits, as no earlier run was"
        " like them, and are not in the other columns."
    )
    if len(rows) > _MOST_USERS:
        said += f" {len(rows) - _MOST_USERS} more users: --json."
    return f"{table(headers, cells, right=headers[1:])}\n\n{paragraph(said)}"


def _text(rows: Sequence[Mapping[str, Any]], days: int) -> str:
    if not rows:
        return paragraph(
            f"No job that ended in the last {days} days was placed with an estimate of its run"
            " time. Estimates begin with the first runs that sacct or the ledger knows, unless"
            " estimates.history_days is 0."
        )
    head = (
        f"Run time of the jobs that ended in the last {days} days, divided by the time that was"
        " expected when they were placed, from earlier runs and the predicted slowdown; last, by"
        " the time limit."
    )
    headers = ["expected from", "jobs", "median", "10%", "90%", "ended in time", "run / limit"]
    cells = [
        (
            _SOURCES.get(row["source"], row["source"]),
            row["jobs"],
            *(f"{row[key]:.2f}" for key in ("median", "p10", "p90")),
            f"{row['within']:.0%}",
            "" if row["median_of_limit"] is None else f"{row['median_of_limit']:.2f}",
        )
        for row in rows
    ]
    total = rows[-1]
    told = (
        f"Half of the jobs took less than {total['median']:.2f} times as long as expected, and"
        f" {total['within']:.0%} ended within the expected time."
    )
    return f"{paragraph(head)}\n\n{table(headers, cells, right=headers[1:])}\n\n{paragraph(told)}"
