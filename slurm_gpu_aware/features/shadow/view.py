"""``gpu-aware report --shadow``: what Slurm's choices cost, as text, JSON or a page."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from slurm_gpu_aware.cli.options import Context
from slurm_gpu_aware.cli.output import clean, paragraph, print_json, say, some, table
from slurm_gpu_aware.features.shadow.losses import (
    EXAMPLES,
    KINDS,
    Account,
    Group,
    Loss,
    account,
)
from slurm_gpu_aware.features.shadow.record import GpuSet, Watch
from slurm_gpu_aware.features.shadow.store import jobs_since, watches_since
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.time_text import duration, stamp

_MOST_NODES = 4
_MOST_REASONS = 6
_KWH_J = 3.6e6
_HEADERS = (
    *("week of", "partition", "jobs", "compared", "no link", "less bandwidth", "nodes broken up"),
    *("waits for them", "slower GPUs", "time lost", "energy lost"),
)
_WORDS = {
    "links": "Links",
    "nodes": "Nodes broken up",
    "slow": "Slow GPUs",
}


def report_shadow(context: Context, days: int, page: Path | None, *, as_json: bool) -> None:
    """Print what Slurm's choices of the last days cost, or write a page."""
    now = time.time()
    since = now - 86_400.0 * days
    with open_for_reading(context.config().store) as store:
        jobs, watches = jobs_since(store, since), watches_since(store, since)
    until = watches[-1].until_at if watches else now
    found = account(jobs, until, week_of)
    unwatched_s = unwatched(watches)
    if page is not None:
        page.write_text(_page(found, days, watches, unwatched_s), encoding="utf-8")
        say(f"wrote {page}")
    if as_json:
        print_json(as_values(found, days, watches, unwatched_s))
    elif page is None:
        click.echo(as_text(found, days, watches, unwatched_s))


def week_of(unix_s: float) -> str:
    """The Monday of the week of a time, local time."""
    day = datetime.fromtimestamp(unix_s).date()
    return (day - timedelta(days=day.weekday())).isoformat()


def unwatched(watches: Sequence[Watch]) -> float:
    """Time between the first and the last look in which the shadow did not run. Units: s."""
    gap_s, until = 0.0, watches[0].until_at if watches else 0.0
    for watch in watches[1:]:
        gap_s += max(0.0, watch.since_at - until)
        until = max(until, watch.until_at)
    return gap_s


# -- sentences -------------------------------------------------------------------------------------


def place(gpus: GpuSet) -> str:
    """``n1:0,1; n2:0,1``."""
    shown = [f"{node}:{','.join(map(str, slots))}" for node, slots in gpus.gpus]
    return "; ".join(shown[:_MOST_NODES]) + ("; ..." if len(shown) > _MOST_NODES else "")


def sentence(loss: Loss, kind: str) -> str:
    """What a job lost, in one short sentence without a full stop."""
    given, ours = place(loss.given), place(loss.ours)
    if kind == "links":
        had = "no direct link on" if loss.unlinked else "less bandwidth on"
        return f"{had} {given} ({_gbps(loss.given)}); {ours} was free ({_gbps(loss.ours)})"
    if kind == "nodes":
        waits = ""
        if loss.job.waited_s:
            waits = f"; job {loss.job.waiting_job} waited {duration(loss.job.waited_s)} for it"
        return f"broke up {some(loss.job.needless, 2)}; {ours} was free{waits}"
    return f"{loss.slower:.0%} slower on {given} than on {ours}, which was free"


def _gbps(gpus: GpuSet) -> str:
    return f"{gpus.gbps or 0.0:.0f} GB/s"


def _example(loss: Loss, kind: str) -> dict[str, Any]:
    return {
        "job_id": loss.job.job_id,
        "user": loss.job.user,
        "class": loss.job.app_class,
        "started_at": loss.job.started_at,
        "ran_s": loss.ran_s,
        "given": {node: list(slots) for node, slots in loss.given.gpus},
        "ours": {node: list(slots) for node, slots in loss.ours.gpus},
        "loss": sentence(loss, kind),
        "look_up": f"sacct -j {loss.job.job_id}",
    }


def _what_was_seen(found: Account, days: int, watches: Sequence[Watch], gap_s: float) -> list[str]:
    """Sentences on what the report stands on."""
    if not watches:
        return [
            f"The shadow has not run in the last {days} days, so nothing is known."
            " Start it: systemctl enable --now gpu-aware-shadow, or gpu-aware selectd --shadow."
        ]
    says = [
        f"Slurm started {found.total.jobs} GPU jobs from {stamp(watches[0].since_at)} to"
        f" {stamp(watches[-1].until_at)}; {len(found.total.losses)} of them are compared with what"
        " we would have given at that moment."
    ]
    if gap_s >= 60.0:
        says.append(f"The shadow did not run for {duration(gap_s)} of this time.")
    return says


def _summary(found: Account) -> list[str]:
    """Sentences on all jobs together."""
    total, says = found.total, list[str]()
    if found.nothing_lost:
        says.append("There is nothing to gain: no compared job lost anything on Slurm's GPUs.")
    elif found.nothing_lost is None and total.losses:
        says.append("It is not known whether there is anything to gain.")
    if total.time_s is not None and not found.nothing_lost:
        energy = "" if total.energy_j is None else f" and {total.energy_j / _KWH_J:.1f} kWh"
        says.append(
            f"Predicted: {_signed(total.time_s)} of run time{energy} lost, less what was gained."
        )
    if total.better:
        gained = -sum(one.time_s or 0.0 for one in total.better)
        says.append(
            f"Slurm's GPUs are the faster ones for {len(total.better)} jobs"
            f" ({duration(gained)}): ours keep nodes whole, or links for other jobs."
        )
    says += [f"Missing: {what}." for what in found.missing()]
    return says


def _signed(seconds: float) -> str:
    return f"-{duration(-seconds)}" if seconds < 0 else duration(seconds)


def _cells(group: Group) -> tuple[Any, ...]:
    links = group.of("links")
    linked = any(one.given.gbps and one.ours.gbps for one in group.losses)
    scored = any(one.time_s is not None for one in group.losses)
    return (
        group.week,
        group.partition,
        group.jobs,
        len(group.losses),
        group.unlinked if linked else None,
        len(links) if linked else None,
        len(group.of("nodes")),
        duration(group.waited_s),
        len(group.of("slow")) if scored else None,
        None if group.time_s is None else _signed(group.time_s),
        None if group.energy_j is None else f"{group.energy_j / _KWH_J:.1f} kWh",
    )


def _examples(found: Account) -> Iterable[tuple[str, Sequence[tuple[str, str]]]]:
    """(kind in words, (job, sentence) of its largest losses)."""
    for kind in KINDS:
        losses = found.total.of(kind)[:EXAMPLES]
        if losses:
            yield _WORDS[kind], [(one.job.job_id, sentence(one, kind)) for one in losses]


# -- forms -----------------------------------------------------------------------------------------


def as_values(found: Account, days: int, watches: Sequence[Watch], gap_s: float) -> dict[str, Any]:
    """Plain values of the report; times in s, energy in J; None: not known."""
    return {
        "days": days,
        "since": watches[0].since_at if watches else None,
        "until": watches[-1].until_at if watches else None,
        "not_running_s": gap_s,
        "jobs": found.total.jobs,
        "compared": len(found.total.losses),
        "not_compared": dict(found.reasons),
        "nothing_to_gain": found.nothing_lost,
        "missing": found.missing(),
        "weeks": [_group_values(group) for group in found.groups],
        "total": _group_values(found.total),
    }


def _group_values(group: Group) -> dict[str, Any]:
    kinds = {
        kind: {
            "jobs": len(found := group.of(kind)),
            "examples": [_example(one, kind) for one in found[:EXAMPLES]],
        }
        for kind in KINDS
    }
    return {
        "week": group.week,
        "partition": group.partition,
        "jobs": group.jobs,
        "compared": len(group.losses),
        "unlinked": group.unlinked,
        "waited_s": group.waited_s,
        "time_s": group.time_s,
        "energy_j": group.energy_j,
        "faster_on_slurms": len(group.better),
        **kinds,
    }


def as_text(found: Account, days: int, watches: Sequence[Watch], gap_s: float) -> str:
    """The report for a terminal."""
    parts = ["\n".join(map(paragraph, _what_was_seen(found, days, watches, gap_s)))]
    if found.groups:
        shown = [*found.groups, found.total] if len(found.groups) > 1 else found.groups
        rows = [_cells(group) for group in shown]
        if len(rows) > 1:
            rows[-1] = ("all", *rows[-1][1:])
        blocks = (_HEADERS[:7], _HEADERS[:2] + _HEADERS[7:])
        parts.append(table(blocks[0], [row[:7] for row in rows], right=blocks[0][2:]))
        parts.append(table(blocks[1], [row[:2] + row[7:] for row in rows], right=blocks[1][2:]))
        parts.append("\n".join(map(paragraph, _summary(found))))
    for title, losses in _examples(found):
        rows = [(job_id, said) for job_id, said in losses]
        parts.append(f"{title} (sacct -j {clean(losses[0][0])})\n{table(('job', 'loss'), rows)}")
    if found.reasons:
        rows = [(count, why) for why, count in found.reasons[:_MOST_REASONS]]
        parts.append("Not compared\n" + table(("jobs", "why"), rows, right=("jobs",)))
    return "\n\n".join(filter(None, parts))


def _page(found: Account, days: int, watches: Sequence[Watch], gap_s: float) -> str:
    """One file without scripts and other files."""
    says = [
        *_what_was_seen(found, days, watches, gap_s),
        *(_summary(found) if found.groups else ()),
    ]
    lists = "".join(f"<p>{html.escape(clean(one))}</p>" for one in says)
    groups = [*found.groups, found.total] if len(found.groups) > 1 else list(found.groups)
    rows = [_cells(group) for group in groups]
    tables = [_html_table(_HEADERS, rows)] if rows else []
    for title, losses in _examples(found):
        cells = [(job_id, said, f"sacct -j {job_id}") for job_id, said in losses]
        tables.append(f"<h2>{title}</h2>" + _html_table(("job", "loss", "look it up"), cells))
    if found.reasons:
        reasons = [(count, why) for why, count in found.reasons[:_MOST_REASONS]]
        tables.append("<h2>Not compared</h2>" + _html_table(("jobs", "why"), reasons))
    return _FRAME.format(lists=lists, tables="\n".join(tables))


def _html_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in headers)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(clean(cell))}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What Slurm's choices cost</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto }}
td, th {{ padding: .3rem .6rem; text-align: left; border-bottom: 1px solid #8888 }}
</style></head><body>
<h1>What Slurm's choices cost</h1>
{lists}
{tables}
</body></html>
"""
