"""``gpu-aware-profile drift``: GPUs that became slower."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import click

from gpu_aware_profile.cli import PARTLY, store_options
from gpu_aware_profile.tables import CHANGE, SHIFT, records
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.store.database import open_for_reading

_AGE = re.compile(r"([0-9]{1,5})([dhm])\Z")
_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0}


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Callback: ``30d`` -> seconds."""
    match = _AGE.match(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not an age such as 30d, 12h or 90m.")
    return int(match[1]) * _UNITS_S[match[2]]


since_option = click.option(
    "--since",
    "since_s",
    callback=_seconds,
    default="30d",
    show_default=True,
    metavar="AGE",
    help="Compare with measurements of this age: 30d, 12h, 90m.",
)


@click.command()
@store_options
@since_option
@json_option
@click.pass_context
def drift(
    context: click.Context, /, path: Path, config: Config, since_s: float, as_json: bool
) -> None:
    """Name the GPUs that became slower since then, worst first; exit code 3 if there are any.

    Compared are the newest measurement of each GPU and class, and the newest one of that time or
    before it (else the oldest one since). A GPU is slower if its PM score, from the median of its
    runs, rose by more than the spread explains. A single slow run therefore does not count, and
    fewer than 3 runs are not enough. A change of all GPUs alike changes no score: it is said in a
    line of its own.

    \b
    Examples:
      gpu-aware-profile drift
      gpu-aware-profile drift --since 7d --json
    """
    from gpu_aware_profile.report.drifting import (  # imports NumPy
        drift_sentences,
        drift_table,
        stored_drift,
    )

    now = time.time()
    with open_for_reading(replace(config.store, path=path)) as store:
        found = stored_drift(store, config, now - since_s)
        path = store.path
    compared = len(found.changes)
    if as_json:
        answer = {
            "store": str(path),
            "since_at": now - since_s,
            "compared": compared,
            "slower": records(found.slower, CHANGE),
            "unconfirmed": records(found.unconfirmed, CHANGE),
            "unjudged": len(found.unjudged),
            "shifts": records(found.shifts, SHIFT),
        }
        print_json(answer)
    elif found.slower:
        click.echo(drift_table(found.slower, now))
    for sentence in drift_sentences(found):
        say(sentence)
    if not compared:
        say("nothing to compare: no GPU was measured twice, and at least once since then")
    elif not found.slower:
        say(f"no GPU became slower ({compared} pairs of GPU and class compared)")
    if found.slower:
        context.exit(PARTLY)
