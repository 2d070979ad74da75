"""Page of the report: one self-contained HTML file."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import chain

from gpu_aware_profile.report.report_data import ClusterReport, drift_sentences
from gpu_aware_profile.report.report_plots import PICTURES
from gpu_aware_profile.tables import CHANGE, Record, View, records
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
