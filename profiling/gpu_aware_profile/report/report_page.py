"""Page of the report: one self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import chain

from gpu_aware_profile.report.drifting import drift_sentences
from gpu_aware_profile.report.report_data import ClusterReport, GpuRow
from gpu_aware_profile.report.report_plots import PICTURES
from gpu_aware_profile.tables import Record
from slurm_gpu_aware.time_text import duration, stamp

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


def page(
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
        _summary(summary, now),
        _slower(report, now),
        _worst(report, now, worst),
        _jobs(report),
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


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [
        "".join(f"<td>{'-' if cell in (None, '') else escape(str(cell))}</td>" for cell in row)
        for row in rows
    ]
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _summary(summary: Sequence[Record], now: float) -> str:
    rows = [
        (
            *(s["class"], s["model"], s["gpus"], f"{s['best']:.3f}", f"{s['worst']:.3f}"),
            *(f"{s['geomean_over_best']:.1%}", _age(now - s["oldest_at"])),
        )
        for s in summary
    ]
    headers = ("class", "model", "GPUs", "best", "worst", "over best", "oldest time")
    note = "<p class='note'>Over best: geometric mean of time over the best time, minus 1.</p>"
    return f"<h2>Classes</h2>{_table(headers, rows)}{note}"


def _slower(report: ClusterReport, now: float) -> str:
    found = report.drift.slower
    rows = [
        (
            *(c.app_class, f"{c.node}:{c.slot}", c.model, f"{c.before:.3f}", f"{c.now:.3f}"),
            *(f"{c.rise:+.1%}", f"{c.threshold:.1%}", _age(now - c.before_at)),
        )
        for c in found
    ]
    headers = ("class", "GPU", "model", "before", "now", "rise", "spread", "since")
    text = _table(headers, rows) if found else ""
    if not report.drift.changes:
        text = "<p>Nothing to compare: no GPU was measured twice.</p>"
    elif not found:
        text = "<p>None beyond the spread of the runs.</p>"
    notes = "".join(f"<p class='note'>{escape(s)}.</p>" for s in drift_sentences(report.drift))
    return f"<h2>GPUs that became slower</h2>{text}{notes}"


def _worst(report: ClusterReport, now: float, count: int) -> str:
    own = [report.of_class(name)[::-1][:count] for name in report.classes]
    rows = [_row(report, row, now) for row in chain.from_iterable(own)]
    headers = ("class", "GPU", "model", "rack", "score", "slowest run", "runs", "loaded", "age")
    note = (
        "<p class='note'>Slowest run: score of the slowest single run; far above the score, the run"
        " was unlucky. Loaded: times as long while the other GPUs of the node work.</p>"
    )
    return f"<h2>Worst GPUs</h2>{_table(headers, rows)}{note}"


def _row(report: ClusterReport, row: GpuRow, now: float) -> tuple[object, ...]:
    return (
        *(row.app_class, f"{row.node}:{row.slot}", row.model, report.places[row.node].rack),
        *(f"{row.score:.3f}", f"{row.worst_run:.3f}", row.runs),
        None if row.loaded is None else f"{row.loaded:.3f}",
        _age(now - row.taken_at),
    )


def _jobs(report: ClusterReport) -> str:
    rows = [
        (*(r.app_class, f"{r.node}:{r.slot}", f"{r.score:.3f}"), f"{j.score:.3f}", j.jobs)
        for r in sorted(report.rows, key=lambda r: -(r.job_score.score if r.job_score else 0.0))
        if (j := r.job_score) is not None
    ]
    if not rows:
        return ""
    headers = ("class", "GPU", "score", "from jobs", "jobs")
    return f"<h2>Slowest GPUs by finished jobs</h2>{_table(headers, rows[:10])}"
