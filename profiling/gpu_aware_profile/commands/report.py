"""``gpu-aware-profile report`` and ``drift``: how the GPUs differ, and which became slower.

The page of the report is one self-contained HTML file.
"""

import base64
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import chain
from pathlib import Path

import click

from gpu_aware_profile.cli import PARTLY, store_options
from gpu_aware_profile.report.report_data import (
    ClusterReport,
    drift_sentences,
    drift_table,
    read_report,
    stored_drift,
)
from gpu_aware_profile.report.report_plots import PICTURES, draw
from gpu_aware_profile.tables import CHANGE, SHIFT, Record, View, records, summarise
from slurm_gpu_aware.cli.options import options_with
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import FileFault, SourceError
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.profiles import score_rows
from slurm_gpu_aware.time_text import duration, stamp

_CLASSES = View(
    "class, model, GPUs=gpus, best:.3f, worst:.3f, over best=geomean_over_best:.1%,"
    " oldest time=oldest_at:ago"
)
_CHANGES = View(
    "class, GPU=gpu, model, before:.3f, now:.3f, rise:+.1%, spread=threshold:.1%,"
    " since=before_at:ago"
)
_WORST = View(
    "class=app_class, GPU=gpu, model, rack, score:.3f, slowest run=worst_run:.3f, runs, loaded:.3f,"
    " age=taken_at:ago"
)
_JOBS = View("class=app_class, GPU=gpu, score:.3f, from jobs=job_score:.3f, jobs")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2em; }
table { border-collapse: collapse; margin: .5em 0; }
th, td { padding: .2em .8em; text-align: right; white-space: nowrap;
         border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; }
p.note { color: #555; }
"""
_AGE = re.compile(r"([0-9]{1,5})([dhm])\Z")
_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0}


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Callback: ``30d`` -> seconds."""
    match = _AGE.match(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not an age such as 30d, 12h or 90m.")
    return int(match[1]) * _UNITS_S[match[2]]


_HELP = {
    "--since": "Compare with measurements of this age: 30d, 12h, 90m.",
    "--html": "Write a page.",
    "--png": "Write the pictures.",
    "--worst": "GPUs of each class in the table of the worst ones.",
}
_option = options_with(_HELP)


since_option = _option(
    "--since", "since_s", callback=_seconds, default="30d", show_default=True, metavar="AGE"
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


@click.command()
@store_options
@since_option
@_option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@_option("--png", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@_option("--worst", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N")
def report(
    path: Path,
    config: Config,
    since_s: float,
    html: Path | None,
    folder: Path | None,
    worst: int,
) -> None:
    """Write a page or pictures of how the GPUs differ, where, and what changed.

    The page is one file that needs no other. It shows the distribution of the scores per class and
    model, the worst GPUs, the racks, GPUs that became slower, medians against single runs, idle
    against loaded neighbours, and scores from finished jobs. Racks are the leaf switches of Slurm's
    topology, else what the node names tell.

    Pictures need matplotlib (the extra 'plots'); without it the page has the tables.

    \b
    Examples:
      gpu-aware-profile report --html gpus.html
      gpu-aware-profile report --png pictures --since 90d
    """
    if html is None and folder is None:
        raise click.UsageError("give --html FILE, --png DIR, or both")
    now = time.time()
    with open_for_reading(replace(config.store, path=path)) as store:
        found = read_report(store, config, _switches(config), now - since_s, now)
        summary = summarise(score_rows(store))
    if not found.rows:
        raise SourceError("no scores yet: 'gpu-aware-profile sweep' or 'import' first")
    pictures, without = {}, ""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            files = _drawn(found, folder or Path(temporary))
            pictures = {file.stem: file.read_bytes() for file in files}
        except SourceError as exc:
            if folder is not None:
                raise
            without = str(exc)
    if folder is not None:
        say(f"wrote {len(pictures)} pictures to {folder}")
    if html is None:
        return
    text = _page(found, summary, pictures, now, worst, without=without)
    with FileFault(html, "written"):
        html.write_text(text, encoding="utf-8")
    say(f"wrote {html}" + (f"; no pictures: {without}" if without else ""))


def _drawn(found: ClusterReport, folder: Path) -> list[Path]:
    """Draw all pictures that have something to show; return their files. Raises SourceError."""
    with FileFault(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)
    files = [(picture, folder / f"{picture.name}.png") for picture in PICTURES]
    return [file for picture, file in files if draw(file, picture, found)]


def _switches(config: Config) -> list[SlurmSwitch]:
    """Slurm's topology; empty: there is none, or Slurm does not answer."""
    try:
        return open_client(config.selector.command_timeout_s).topology()
    except SourceError:
        return []


def _page(
    report: ClusterReport,
    summary: Sequence[Record],
    pictures: Mapping[str, bytes],
    now: float,
    worst: int,
    *,
    without: str,
) -> str:
    """The HTML of the report.

    ``summary``: `tables.summarise`. ``pictures``: name -> PNG. ``now``: Unix time. ``worst``: GPUs
    of a class in the table of the worst ones. ``without``: why there are no pictures, or empty.
    """
    gpus = len({(row.node, row.slot) for row in report.rows})
    nodes = len({row.node for row in report.rows})
    parts = [
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>GPUs of the cluster, {escape(stamp(now))}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>GPUs of the cluster</h1><p>{escape(stamp(now))}: {gpus} GPUs of {nodes} nodes."
        " A score is the time of a GPU over that of the median GPU of its model: 1.1 = 10% slower."
        "</p>",
        *(f"<p class='note'>Note: {escape(sentence)}.</p>" for sentence in report.profiles),
        _summary(summary, now),
        _slower(report, now),
        _worst(report, now, worst),
        _jobs(report, now),
    ]
    if without:
        parts.append(f"<p class='note'>No pictures: {escape(without)}</p>")
    for picture in PICTURES:
        if picture.name in pictures:
            data = base64.b64encode(pictures[picture.name]).decode("ascii")
            text = picture.text
            if picture.name in ("racks", "map"):
                text += f" Here {report.places_from}."
            if picture.name == "change":
                text += f" Before: measured {_age(now - report.since)} ago or earlier, if possible."
            parts.append(
                f"<h2>{escape(picture.title)}</h2><p>{escape(text)}</p>"
                f"<img alt='{escape(picture.title)}' src='data:image/png;base64,{data}'>"
            )
    return "\n".join([*parts, "</body></html>\n"])


def _age(seconds: float) -> str:
    """In the largest unit: ``40 d``."""
    return " ".join(duration(round(seconds)).split()[:2])


def _table(view: View, rows: Iterable[Record], now: float) -> str:
    lines = [
        "".join(f"<td>{'-' if cell in (None, '') else escape(str(cell))}</td>" for cell in row)
        for row in view.cells(rows, lambda at: _age(now - at))
    ]
    head = "".join(f"<th>{escape(header)}</th>" for header in view.headers)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _summary(summary: Sequence[Record], now: float) -> str:
    note = "<p class='note'>Over best: geometric mean of time over the best time, minus 1.</p>"
    return f"<h2>Classes</h2>{_table(_CLASSES, summary, now)}{note}"


def _slower(report: ClusterReport, now: float) -> str:
    found = report.drift.slower
    rows = [row | {"gpu": f"{row['node']}:{row['gpu']}"} for row in records(found, CHANGE)]
    text = _table(_CHANGES, rows, now) if found else ""
    if not report.drift.changes:
        text = "<p>Nothing to compare: no GPU was measured twice.</p>"
    elif not found:
        text = "<p>None beyond the spread of the runs.</p>"
    notes = "".join(f"<p class='note'>{escape(s)}.</p>" for s in drift_sentences(report.drift))
    return f"<h2>GPUs that became slower</h2>{text}{notes}"


def _worst(report: ClusterReport, now: float, count: int) -> str:
    own = [report.of_class(name)[::-1][:count] for name in report.classes]
    rows = [
        vars(row) | {"gpu": f"{row.node}:{row.slot}", "rack": report.places[row.node].rack}
        for row in chain.from_iterable(own)
    ]
    note = (
        "<p class='note'>Slowest run: score of the slowest single run; far above the score, the run"
        " was unlucky. Loaded: times as long while the other GPUs of the node work.</p>"
    )
    return f"<h2>Worst GPUs</h2>{_table(_WORST, rows, now)}{note}"


def _jobs(report: ClusterReport, now: float) -> str:
    rows = [
        vars(row) | {"gpu": f"{row.node}:{row.slot}", "jobs": job.jobs, "job_score": job.score}
        for row in report.rows
        if (job := row.job_score) is not None
    ]
    rows.sort(key=lambda row: -float(row["job_score"]))
    table = _table(_JOBS, rows[:10], now)
    return f"<h2>Slowest GPUs by finished jobs</h2>{table}" if rows else ""
