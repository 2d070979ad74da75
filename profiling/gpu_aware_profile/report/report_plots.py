"""Pictures of the report: one panel per class. matplotlib is imported late."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpu_aware_profile.report.report_data import ClusterReport, GpuRow
from slurm_gpu_aware.cli.output import drawn_into

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKED = "#d55e00"
_PLAIN = "#0072b2"
_COLUMNS = 3
_MOST_RACKS = 40
_NAMED = 4
_LINE = 0.055  # Height of a name, as a share of the panel.
_SLOW, _UNLUCKY = 1.02, 1.1  # Scores and slowest runs over the median from which on a GPU is named.
_LOG_FROM = 1.5  # Runs that were so many times slower are shown on a logarithmic scale.
_LOG_TICKS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0)
_LEAST_RANGE = 0.02  # Colours span at least this much above and below 1.

Draw = Callable[[Any, ClusterReport, str], None]


class Picture(NamedTuple):
    """One picture."""

    name: str  # Of the file, without its end.
    title: str
    text: str  # How to read it.
    draw: Draw  # Draws one class into one panel.
    there: Callable[[ClusterReport, str], bool]  # Whether a class has what it shows.
    size: tuple[float, float] = (5.0, 3.9)  # Inches of a panel.
    wide: bool = False  # Panels below each other.


def draw(path: Path, picture: Picture, report: ClusterReport) -> bool:
    """Draw a picture as PNG; False: the report has nothing for it.

    Raises SourceError if matplotlib is missing or the file cannot be written.
    """
    classes = [name for name in report.classes if picture.there(report, name)]
    if not classes:
        return False
    columns = 1 if picture.wide else min(_COLUMNS, len(classes))
    lines = math.ceil(len(classes) / columns)
    size = (picture.size[0] * columns, picture.size[1] * lines)
    with drawn_into(path, size, dpi=110) as figure:
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for panel, name in zip(panels, classes, strict=False):
            picture.draw(panel, report, name)
            panel.set_title(f"class {name}", loc="left", fontsize=11, fontweight="bold")
        for panel in panels[len(classes) :]:
            panel.set_axis_off()
    return True


def _decorate(panel: Any, x: str, y: str) -> None:
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(visible=True, alpha=0.3)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _by_model(rows: Iterable[GpuRow]) -> dict[str, list[GpuRow]]:
    found: dict[str, list[GpuRow]] = {}
    for row in rows:
        found.setdefault(row.model or "GPUs", []).append(row)
    return dict(sorted(found.items()))


def _cut(panel: Any, values: np.ndarray[Any, Any]) -> None:
    """Cut the y axis above nearly all values, and say how many are beyond."""
    low, high = float(values.min()), float(values.max())
    near = 1.0 + 3.0 * max(float(np.quantile(values, 0.98)) - 1.0, _LEAST_RANGE)
    margin = 0.05 * (min(high, near) - low)
    if high <= near:
        return
    panel.set_ylim(low - margin, near + margin)
    beyond = int((values > near).sum())
    text = f"{beyond} above, up to {high:.2f}"
    panel.annotate(
        text, (0.98, 0.97), xycoords="axes fraction", ha="right", va="top", color=_MARKED
    )


def _sorted(panel: Any, report: ClusterReport, app_class: str) -> None:
    rows = report.of_class(app_class)
    _curves(panel, rows, lambda row: row.score, drawstyle="steps-mid")
    _cut(panel, np.array([row.score for row in rows]))
    _decorate(panel, "share of GPUs, % (fastest left)", "time / median GPU of the model")
    panel.legend(frameon=False, loc="upper left")


def _curves(
    panel: Any, rows: Iterable[GpuRow], value: Callable[[GpuRow], float], **style: str
) -> None:
    """Sorted values of the GPUs of each model."""
    for number, (model, own) in enumerate(_by_model(rows).items()):
        values = np.sort([value(row) for row in own])
        share = 100.0 * np.arange(1, len(values) + 1) / len(values)
        colour = _COLOURS[number % len(_COLOURS)]
        panel.plot(share, values, color=colour, lw=2, label=model, **style)
    panel.axhline(1.0, color="black", lw=0.8)
    panel.set_xlim(0, 100)


def _violins(panel: Any, report: ClusterReport, app_class: str) -> None:
    rows = report.of_class(app_class)
    groups = _by_model(rows)
    values = [[row.score for row in own] for own in groups.values()]
    shape = panel.violinplot(values, showextrema=False, widths=0.8, bw_method=0.2)
    for number, body in enumerate(shape["bodies"]):
        body.set_facecolor(_COLOURS[number % len(_COLOURS)])
        body.set_alpha(0.35)
    panel.boxplot(
        values,
        whis=(5, 95),
        widths=0.18,
        medianprops={"color": "black", "linewidth": 2},
        flierprops={"marker": ".", "markersize": 4, "alpha": 0.5},
    )
    labels = [f"{model}\n{len(own)} GPUs" for model, own in groups.items()]
    panel.set_xticks(range(1, len(groups) + 1), labels)
    _cut(panel, np.array([row.score for row in rows]))
    _decorate(panel, "", "time / median GPU of the model")


def _racks(panel: Any, report: ClusterReport, app_class: str) -> None:
    racks: dict[str, list[float]] = {}
    for row in report.of_class(app_class):
        racks.setdefault(report.places[row.node].rack, []).append(row.score)
    left_out = max(0, len(racks) - _MOST_RACKS)
    if left_out:
        worst = sorted(racks, key=lambda rack: float(np.median(racks[rack])), reverse=True)
        racks = {rack: racks[rack] for rack in racks if rack in worst[:_MOST_RACKS]}
    known = dict.fromkeys(place.rack for place in report.places.values())
    order = [rack for rack in known if rack in racks]
    panel.boxplot(
        [racks[rack] for rack in order],
        whis=(5, 95),
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": "#9ecae1", "edgecolor": "black"},
        medianprops={"color": "black", "linewidth": 2},
        flierprops={"marker": ".", "markersize": 5, "markeredgecolor": _MARKED},
    )
    panel.axhline(1.0, color="black", lw=0.8)
    labels = [f"{rack} ({len(racks[rack])})" for rack in order]
    turned = sum(map(len, labels)) > 90
    panel.set_xticks(
        range(1, len(order) + 1), labels, rotation=90 if turned else 0, fontsize=8 if turned else 9
    )
    _cut(panel, np.array([row.score for row in report.of_class(app_class)]))
    more = f"; {left_out} racks with lower medians are left out" if left_out else ""
    _decorate(panel, f"rack (GPUs){more}", "time / median GPU")


def _map(panel: Any, report: ClusterReport, app_class: str) -> None:
    rows = report.of_class(app_class)
    racks = list(dict.fromkeys(place.rack for place in report.places.values()))
    line_of = {rack: number for number, rack in enumerate(racks)}
    width = 1 + max(row.slot for row in rows)
    first = min(place.position for place in report.places.values())
    nodes = 1 + max(place.position for place in report.places.values()) - first
    grid = np.full((len(racks), nodes * width), np.nan)
    for row in rows:
        place = report.places[row.node]
        grid[line_of[place.rack], (place.position - first) * width + row.slot] = row.score
    span = max(_LEAST_RANGE, float(np.nanquantile(np.abs(grid - 1.0), 0.98)))
    image = panel.imshow(
        grid,
        cmap="RdBu_r",
        vmin=1.0 - span,
        vmax=1.0 + span,
        aspect="auto",
        interpolation="nearest",
    )
    panel.set_facecolor("#cccccc")
    every = max(1, math.ceil(nodes / 24))
    places = range(0, nodes, every)
    middles = [k * width + (width - 1) / 2 for k in places]
    panel.set_xticks(middles, [str(k + first) for k in places])
    for k in range(1, nodes):
        panel.axvline(k * width - 0.5, color="white", lw=0.8)
    step = max(1, math.ceil(len(racks) / 18))
    panel.set_yticks(range(0, len(racks), step), racks[::step], fontsize=8)
    panel.set_xlabel("number of the node in its rack; each column is a GPU")
    panel.set_ylabel("rack")
    panel.figure.colorbar(image, ax=panel, label="time / median GPU", extend="both", pad=0.01)


def _label(panel: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Name points: names in a column beside the panel, each with a line to its point.

    Heights are shares of the panel, so that a logarithmic axis needs no other rule.
    """
    panel.get_xlim(), panel.get_ylim()  # sets the limits, which the transformation needs
    to_share = panel.transData + panel.transAxes.inverted()
    heights = [float(to_share.transform(point[:2])[1]) for point in points]
    order = sorted(range(len(points)), key=lambda k: -heights[k])
    above = 1.0 + _LINE
    for left, k in zip(range(len(order), 0, -1), order, strict=True):
        above = min(above - _LINE, max(heights[k], _LINE * (left - 1)))
        panel.annotate(
            points[k][2],
            points[k][:2],
            xytext=(1.01, above),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "#888888", "shrinkA": 0},
        )


def _runs(panel: Any, report: ClusterReport, app_class: str) -> None:
    rows = [row for row in report.of_class(app_class) if row.runs > 1]
    worst = {(row.node, row.slot): row.worst_run / row.score for row in rows}
    panel.plot([r.score for r in rows], list(worst.values()), ".", color=_PLAIN, alpha=0.5, ms=6)
    panel.axvline(1.0, color="black", lw=0.8)
    panel.margins(0.1)
    if max(worst.values()) > _LOG_FROM:
        panel.set_yscale("log")
        panel.set_yticks([t for t in _LOG_TICKS if t <= max(worst.values()) * 1.1])
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.yaxis.set_minor_formatter(lambda value, _: "")
    panel.locator_params(axis="x", nbins=6)
    slow = sorted((r for r in rows if r.score > _SLOW), key=lambda r: -r.score)
    unlucky = [r for r in rows if worst[r.node, r.slot] > _UNLUCKY]
    unlucky.sort(key=lambda r: -worst[r.node, r.slot])
    named = {(r.node, r.slot): r.score for r in (*slow[:_NAMED], *unlucky[:_NAMED])}
    _label(panel, [(x, worst[gpu], f"{gpu[0]}:{gpu[1]}") for gpu, x in named.items()])
    _decorate(panel, "median of the runs / median GPU", "slowest run / median of the runs")


def _neighbours(panel: Any, report: ClusterReport, app_class: str) -> None:
    rows = [row for row in report.of_class(app_class) if row.loaded is not None]
    _curves(panel, rows, lambda row: row.loaded or 0.0)
    _decorate(panel, "share of GPUs, % (least affected left)", "time loaded / time idle")
    panel.legend(frameon=False, loc="upper left")


def _change(panel: Any, report: ClusterReport, app_class: str) -> None:
    changes = [c for c in report.drift.changes if c.app_class == app_class]
    plain = [c for c in changes if not c.slower]
    slower = [c for c in changes if c.slower]
    panel.plot(
        [c.before for c in plain], [c.now for c in plain], ".", color=_PLAIN, alpha=0.5, ms=6
    )
    panel.plot([c.before for c in slower], [c.now for c in slower], "D", color=_MARKED, ms=6)
    ends = (
        min(min(c.before, c.now) for c in changes),
        max(max(c.before, c.now) for c in changes),
    )
    panel.plot(ends, ends, color="black", lw=0.8)
    panel.margins(0.08)
    _label(panel, [(c.before, c.now, f"{c.node}:{c.slot}") for c in slower[: 2 * _NAMED]])
    panel.locator_params(axis="x", nbins=6)
    _decorate(panel, "score before", "score now")


def _jobs(panel: Any, report: ClusterReport, app_class: str) -> None:
    rows = [row for row in report.of_class(app_class) if row.job_score is not None]
    x = [row.score for row in rows]
    y = [row.job_score.score for row in rows if row.job_score is not None]
    size = [6.0 * math.sqrt(row.job_score.jobs) for row in rows if row.job_score is not None]
    panel.scatter(x, y, s=size, color=_PLAIN, alpha=0.6)
    ends = (min(*x, *y), max(*x, *y))
    panel.plot(ends, ends, color="black", lw=0.8)
    panel.locator_params(axis="x", nbins=6)
    _decorate(panel, "score of the sweep", "score from finished jobs")


def _always(report: ClusterReport, app_class: str) -> bool:
    return True


PICTURES = (
    Picture(
        "distribution",
        "How GPUs differ",
        "Time of each GPU over that of the median GPU of its model, sorted.",
        _sorted,
        _always,
    ),
    Picture(
        "violins",
        "The same, per model",
        "Box: 25 to 75%, whiskers: 5 to 95%, bar: median, points: the GPUs beyond.",
        _violins,
        _always,
    ),
    Picture(
        "racks",
        "By rack",
        "One box per rack: 25 to 75%, whiskers 5 to 95%, bar: median, points: the GPUs beyond. A"
        " rack that is slow as a whole has a cause of its own, such as its cooling or power.",
        _racks,
        lambda report, name: len({place.rack for place in report.places.values()}) > 1,
        (11.0, 3.8),
        wide=True,
    ),
    Picture(
        "map",
        "By rack and position",
        "One cell per GPU: red is slower than the median GPU of the model, blue faster, grey not"
        " measured.",
        _map,
        _always,
        (11.0, 3.6),
        wide=True,
    ),
    Picture(
        "runs",
        "Medians against single runs",
        "Right: GPUs that are slow in all runs, so persistently. High: a single run was slow; that"
        " was bad luck, and the median does not blame the GPU.",
        _runs,
        lambda report, name: any(row.runs > 1 for row in report.of_class(name)),
    ),
    Picture(
        "neighbours",
        "Idle against loaded neighbours",
        "How many times as long a GPU takes while the other GPUs of its node work.",
        _neighbours,
        lambda report, name: any(row.loaded is not None for row in report.of_class(name)),
    ),
    Picture(
        "change",
        "Change since then",
        "Score before and now; on the line nothing changed. Diamonds: slower beyond the spread.",
        _change,
        lambda report, name: any(c.app_class == name for c in report.drift.changes),
    ),
    Picture(
        "jobs",
        "Scores from finished jobs",
        "Run time of jobs over the median of jobs of the same user, name and size, per GPU (3 jobs"
        " or more; larger points: more jobs), beside the sweep's score. Placement uses the"
        " sweep's.",
        _jobs,
        lambda report, name: any(row.job_score is not None for row in report.of_class(name)),
    ),
)
"""In the order of the page."""
