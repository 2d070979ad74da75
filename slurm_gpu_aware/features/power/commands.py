"""``gpu-aware power``: the limit for the power of all GPUs, set, shown and drawn."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from slurm_gpu_aware.cli.options import Context, pass_context
from slurm_gpu_aware.cli.output import drawn_into, json_option, pairs, print_json, say, table
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.time_text import counted, stamp

_KW = 1000.0
_MOST_SAMPLES = 1000
_SAMPLE = ("limit_w", "planned_w", "measured_w")


@click.group("power")
def power() -> None:
    """Set or show the limit for the power of all GPUs of the site together."""


@power.command("set")
@click.argument("limit", metavar="WATTS|eta=X|off|auto")
@click.option(
    "--until",
    metavar="TIME",
    help="End of it: a time of day (18:30, the next one) or a duration (90m or 90min, 8h, 2d).",
)
@pass_context
def set_limit(context: Context, limit: str, until: str | None) -> None:
    """Set the power limit, instead of the one of the configuration and its schedule.

    Run it on the controller as root or SlurmUser. WATTS counts all GPUs, idle ones too; eta is a
    share of what all GPUs may draw by their power limits. The selector takes it in its next round.
    'auto' ends what was set: the configuration counts again.

    \b
    Examples:
      gpu-aware power set 18000
      gpu-aware power set eta=0.7 --until 06:00
      gpu-aware power set off --until 8h
      gpu-aware power set auto
    """
    from slurm_gpu_aware.features.power.declared import parse_limit
    from slurm_gpu_aware.features.power.power_limit import (
        SetLimit,
        limit_in_force,
        parse_until,
        unset_limit,
        write_set_limit,
    )

    config, now = context.config(), time.time()
    if limit == "auto":
        if until is not None:
            raise RequestError("--until: 'auto' has no end")
        unset_limit(config)
    else:
        try:
            parse_limit(limit)
            until_s = None if until is None else parse_until(until, now)
        except ValueError as exc:
            raise RequestError(str(exc)) from None
        write_set_limit(config, SetLimit(limit, now, until_s))
    say(f"power limit: {limit_in_force(config, now).words}")


@power.command("show")
@json_option
@pass_context
def show(context: Context, as_json: bool) -> None:
    """Show the limit in force, planned and measured power, idle nodes, and jobs that keep clocks.

    Every user may run it.

    \b
    Examples:
      gpu-aware power show
      gpu-aware power show --json
    """
    from slurm_gpu_aware.features.power.declared import OFF, PowerConfig
    from slurm_gpu_aware.features.power.power_limit import limit_in_force
    from slurm_gpu_aware.selector.job_answers import open_reader

    config, now = context.config(), time.time()
    with open_reader(config) as reader:
        reading = last_reading(reader.store)
        samples = reader.ledger.power(now - 86_400)
        note = reader.note()
        own = reader.copy_age_s is None
    # What was set stands on the selector's host; other hosts know it from the last round.
    in_force = limit_in_force(config, now)
    held = in_force.words if own or reading is None else reading["limit"]
    schedule = dict(config.of(PowerConfig).schedule)
    if as_json:
        few = samples[:: max(1, len(samples) // _MOST_SAMPLES)]
        rows = [dict(zip(("at", *_SAMPLE), sample, strict=True)) for sample in few]
        print_json({"limit": held, "schedule": schedule, "last": reading, "day": rows})
        return
    entries: list[tuple[str, object]] = [("limit", held)]
    entries += [("schedule", f"{limit} at {span}") for span, limit in schedule.items()]
    if reading is not None and reading["limit"] != held:
        reading = None  # of another limit
    if reading is None and in_force.limit != OFF:
        entries.append(("power", "the selector has planned no round under this limit yet"))
    else:
        entries.append(("power", power_line(reading)))
    if reading is not None and reading["idle_nodes"]:
        entries.append(("idle nodes", f"{reading['idle_nodes']}: candidates for power saving"))
    click.echo(pairs(entries))
    if reading is not None and reading["keeps_clock"]:
        rows_of = sorted(reading["keeps_clock"].items())
        click.echo("\n" + table(["job", "keeps its clock because"], rows_of))
    if reading is not None and (missing := reading.get("no_model")):
        click.echo("\n" + table(["job", "its model is not used:"], sorted(missing.items())))
    if reading is not None and reading["agents"]:
        troubles = sorted(reading["agents"].items())
        click.echo("\n" + table(["node", "its clock agent obeys no orders because"], troubles))
    if samples:
        peak = max(samples, key=lambda sample: sample[2])
        say(f"highest planned power of the last day: {peak[2]:.0f} W at {stamp(peak[0])}")
    if note:
        say(note)


def report_power(context: Context, days: int, path: Path, *, as_json: bool) -> None:
    """Draw planned and measured power of the last days. Raises RequestError, SourceError."""
    from slurm_gpu_aware.selector.job_answers import open_reader

    with open_reader(context.config()) as reader:
        samples = reader.ledger.power(time.time() - 86_400.0 * days)
    _draw(path, samples)
    if as_json:
        print_json({"file": str(path), "days": days, "rounds": len(samples)})
    else:
        say(f"wrote {path}: {len(samples)} rounds under a power limit")


def last_reading(store: Any) -> dict[str, Any] | None:
    """Power after the selector's last round; None: there was no limit."""
    import json

    from slurm_gpu_aware.store.database import POWER, value_of

    text = value_of(store, POWER)
    found: dict[str, Any] | None = None if text is None else json.loads(text)
    return found


def power_line(reading: Mapping[str, Any] | None) -> str:
    """``planned 812 W of 1000 W, measured 790 W``; the limit of the last round."""
    if reading is None:
        return "no limit"
    text = f"planned {reading['planned_w']:.0f} W of {reading['limit_w']:.0f} W, "
    if reading["measured_w"] is None:
        text += "not measured"
    else:
        text += f"measured {reading['measured_w']:.0f} W"
        if reading["measured_gpus"] < reading["gpus"]:
            text += f" on {reading['measured_gpus']} of {reading['gpus']} GPUs"
    if reading["unmet"]:
        text += "; the limit cannot be met: what runs needs more"
    if count := reading["keeping"]:
        text += f"; {counted(count, 'job keeps its', 'jobs keep their')} clock"
    if missing := reading.get("without_model", 0):  # readings of an older selector lack it
        text += f"; {counted(missing, 'job has', 'jobs have')} no model"
    if count or missing:
        text += ": gpu-aware power show"
    return text


def _draw(path: Path, samples: Sequence[tuple[float, float, float, float | None]]) -> None:
    """Draw rows of `store.ledger.Ledger.power` into a file; its suffix names the format.

    Raises RequestError without samples, SourceError if the file cannot be written.
    """
    if not samples:
        raise RequestError("no round under a power limit is recorded in these days")
    times: Any = [datetime.fromtimestamp(at) for at, *_ in samples]  # matplotlib takes them
    limits, planned = [row[1] / _KW for row in samples], [row[2] / _KW for row in samples]
    known = [(at, row[3] / _KW) for at, row in zip(times, samples, strict=True) if row[3]]
    with drawn_into(path, (9, 4), dpi=110) as figure:
        axes = figure.add_subplot()
        axes.step(times, limits, "k--", where="post", label="limit")
        axes.step(times, planned, color="#0072b2", where="post", label="planned")
        if known:
            axes.plot(*zip(*known, strict=True), ".", color="#d55e00", label="measured")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("power of all GPUs, kW")
        axes.legend(loc="lower right")
        axes.grid(alpha=0.3)
        figure.autofmt_xdate()
