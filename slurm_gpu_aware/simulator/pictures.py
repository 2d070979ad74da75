"""Pictures of simulated runs. Policies differ in line, marker and hatch, not in colour alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu_aware.model.arrays import area_until
from slurm_gpu_aware.simulator.files import SavedRun
from slurm_gpu_aware.simulator.history import RECORDED
from slurm_gpu_aware.time_text import duration

_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
"""40 pairs with the dashes: the two lengths have no common divisor."""
_HATCHES = (
    "", "///", "...", "xxx", "\\\\\\", "ooo", "---", "|||", "+++", "**", "OO", "//..", "--..",
    "||..", "\\\\oo", "//--",
)  # fmt: skip
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000", "#e69f00", "#7a5195",
    "#8c564b", "#7f7f7f", "#6b8e23",
)  # fmt: skip
_TICKS_S = (
    0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 864_000.0, 8_640_000.0,
)  # fmt: skip
_MORE_TICKS_S = tuple(
    sorted(
        n * unit
        for unit, counts in (
            (0.001, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1.0, (1, 2, 5, 10, 20, 30)),
            (60.0, (1, 2, 5, 10, 20, 30)), (3600.0, (1, 2, 4, 8, 12)),
            (86_400.0, (1, 2, 4, 10, 20, 50, 100)),
        )
        for n in counts
    )
)  # fmt: skip
"""Ticks of logarithmic axes of times. Units: s."""
_BINS = 60
_MARKS = 12
_FEWEST_TICKS = 3
_LABEL, _TURNED_LABEL = 0.05, 0.09
"""Height of a bar's number with its margin, upright and rotated, as a share of the picture's."""

Draw = Callable[[Any, Sequence[SavedRun], Mapping[str, Any]], None]


def draw_picture(path: Path, draw: Draw, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> Path:
    """Draw one picture into a PNG file; return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.add_subplot(), runs, head)
    figure.savefig(path, dpi=110)
    return path


def time_unit(seconds: float) -> tuple[float, str]:
    """Divisor and name of the unit for a time of this size."""
    for size, name in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 3 * size:
            return size, name
    return 1.0, "s"


def _span(runs: Sequence[SavedRun]) -> tuple[float, float]:
    """First submission and last end of the compared jobs."""
    begin = min(float(run.columns["submit_s"].min()) for run in runs)
    return begin, max(float(run.columns["end_s"].max()) for run in runs)


def line_look(number: int) -> tuple[Any, str]:
    """Dashes and marker of the policy at this position; the first 40 differ."""
    return _DASHES[number % len(_DASHES)], _MARKERS[number % len(_MARKERS)]


def _line(ax: Any, number: int, x: Any, y: Any, label: str) -> None:
    dashes, marker = line_look(number)
    every = max(1, len(x) // _MARKS)
    start = (number % len(_MARKERS)) * every // len(_MARKERS)
    ax.plot(
        x, y, label=label, linestyle=dashes, color=_COLOURS[number % len(_COLOURS)], marker=marker,
        markevery=(start, every), markersize=max(8.0 - 0.5 * number, 4.0),
    )  # fmt: skip


def _decorate(ax: Any, title: str, x: str, y: str) -> None:
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(visible=True, alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[1]:  # beside the picture: many lines leave no room inside
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _jct_cdf(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    for number, run in enumerate(runs):
        jct = np.sort(run.columns["jct_s"])
        share = np.arange(1, len(jct) + 1) / len(jct) * 100
        _line(ax, number, np.maximum(jct, 1e-9), share, run.label)
    ax.set_xscale("log")
    _time_ticks(ax.xaxis, ax.get_xlim())
    ax.set_ylim(0, 101)
    _decorate(ax, "Job completion time", "completion time (log scale)", "share of jobs, %")


def _time_ticks(axis: Any, shown: tuple[float, float]) -> None:
    """Ticks of a logarithmic axis of times, as people say these; ``shown``: its ends, s."""
    ticks: Sequence[float] = ()
    for each in (_TICKS_S, _MORE_TICKS_S, np.geomspace(*shown, 5)[1:-1].tolist()):
        ticks = [tick for tick in each if shown[0] <= tick <= shown[1]]
        if len(ticks) >= _FEWEST_TICKS:
            break
    axis.set_ticks(ticks, labels=[duration(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def _log_ticks(axis: Any, shown: tuple[float, float]) -> None:
    """Ticks of a logarithmic axis as plain numbers; more of them over few powers of ten."""
    from matplotlib.ticker import MaxNLocator

    if shown[1] < 3 * shown[0]:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    elif shown[1] < 300 * shown[0]:
        axis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: "")


def _each_job(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    first = next((i for i, run in enumerate(runs) if run.label != RECORDED), 0)
    base = np.maximum(runs[first].columns["jct_s"], 1e-9)
    for number, run in enumerate(runs):
        if number == first or run.label == RECORDED:
            continue
        ratio = np.sort(np.maximum(run.columns["jct_s"], 1e-9) / base)
        share = np.arange(1, len(ratio) + 1) / len(ratio) * 100
        _line(ax, number, ratio, share, run.label)
    ax.axvline(1.0, color="black", linewidth=0.8)
    ax.set_xscale("log")
    _log_ticks(ax.xaxis, ax.get_xlim())
    ax.set_ylim(0, 101)
    what = f"completion time / that with {runs[first].label} (log scale)"
    _decorate(ax, "Each job against itself", what, "share of jobs, %")


def _wait_over_time(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    begin, _ = _span(runs)
    last = max(float(r.columns["submit_s"].max()) for r in runs) - begin
    size, name = time_unit(last)
    edges = np.linspace(0, max(last, 1.0) * (1 + 1e-9), min(_BINS, 12 + len(runs)) + 1)
    means = []
    for run in runs:
        place = np.digitize(run.columns["submit_s"] - begin, edges) - 1
        count = np.bincount(place, minlength=len(edges) - 1)
        total = np.bincount(place, weights=run.columns["wait_s"], minlength=len(edges) - 1)
        means.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    wait_size, wait_name = time_unit(float(np.nanmax(means)))
    middle = (edges[1:] + edges[:-1]) / 2 / size
    for number, (run, mean) in enumerate(zip(runs, means, strict=True)):
        there = np.isfinite(mean)
        _line(ax, number, middle[there], mean[there] / wait_size, run.label)
    ax.set_ylim(bottom=0)
    ax.set_xlim(left=0)
    below = f"submission after the first one, {name}"
    _decorate(ax, "Wait by time of submission", below, f"average wait, {wait_name}")


def _gpus_over_time(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    begin, end = _span(runs)
    size, name = time_unit(end - begin)
    edges = np.linspace(0, max(end - begin, 1.0), 2 * _BINS + 1)
    highest = 0.0
    for number, run in enumerate(runs):
        busy = area_until(run.used_s, run.used_gpus, begin + edges)
        mean = np.diff(busy) / np.diff(edges)
        _line(ax, number, (edges[1:] + edges[:-1]) / 2 / size, mean, run.label)
        highest = max(highest, float(mean.max()))
    total = head["site"]["gpus"]
    ax.axhline(total, color="black", linewidth=0.8)
    ax.annotate(
        f"all {total} GPUs", (0, total), xytext=(2, 4), textcoords="offset points",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
    )  # fmt: skip
    ax.set_xlim(left=0)
    ax.set_ylim(0, max(total, highest) * 1.12)
    ax.yaxis.get_major_locator().set_params(integer=True)
    _decorate(ax, "GPUs in use", f"time after the first submission, {name}", "GPUs")


def _power_over_time(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    begin, end = _span(runs)
    size, name = time_unit(end - begin)
    edges = np.linspace(0, max(end - begin, 1.0), 2 * _BINS + 1)
    for number, run in enumerate(runs):
        if len(run.power_s):
            mean = np.diff(area_until(run.power_s, run.power_w, begin + edges)) / np.diff(edges)
            _line(ax, number, (edges[1:] + edges[:-1]) / 2 / size, mean / 1e3, run.label)
    limits = {run["power_limit_w"] for run in head["runs"]} - {None}
    for limit in sorted(limits):
        ax.axhline(limit / 1e3, color="black", linewidth=0.8)
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    _decorate(ax, "Power of all GPUs", f"time after the first submission, {name}", "power, kW")


def _slowdown_per_class(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    classes = sorted({name for run in runs for name in run.app_class})
    width = 0.8 / len(runs)
    turn = 90 if len(runs) * len(classes) > 12 else 0
    values: list[tuple[float, float]] = []
    for number, run in enumerate(runs):
        own = np.array(run.app_class)
        slowdown = {name: run.columns["slowdown"][own == name] for name in classes}
        means = [float(own.mean()) if len(own) else np.nan for own in slowdown.values()]
        at = np.arange(len(classes)) + (number - (len(runs) - 1) / 2) * width
        ax.bar(
            at, means, width * 0.9, label=run.label, color=_COLOURS[number % len(_COLOURS)],
            hatch=_HATCHES[number % len(_HATCHES)], edgecolor="white",
        )  # fmt: skip
        values += [(x, mean) for x, mean in zip(at, means, strict=True) if np.isfinite(mean)]
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xticks(range(len(classes)), classes)
    highest = ax.get_ylim()[1] * 1.1
    ax.set_ylim(0, highest)
    tall = highest * (_TURNED_LABEL if turn else _LABEL)
    for x, mean in values:
        foot = 1.0 if 1.0 - tall < mean < 1.0 else mean  # not across the line at 1
        ax.annotate(
            f"{mean:.2f}", (x, foot), ha="center", va="bottom", fontsize=8,
            xytext=(0, 2), textcoords="offset points", rotation=turn,
        )  # fmt: skip
    _decorate(ax, "Slowdown per class", "application class", "time on GPUs / time on median GPUs")


def _boxes(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    jct = [run.columns["jct_s"] for run in runs]
    parts = ax.boxplot(
        jct, whis=(5, 95), showfliers=False, showmeans=True,
        patch_artist=True, medianprops={"color": "black", "linewidth": 2},
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"},
    )  # fmt: skip
    for number, box in enumerate(parts["boxes"]):
        box.set_facecolor(_COLOURS[number % len(_COLOURS)] + "55")
        box.set_hatch(_HATCHES[number % len(_HATCHES)])
    tilt = 20 if len(runs) > 4 else 0
    ax.set_xticks(
        range(1, len(runs) + 1), [r.label for r in runs], rotation=tilt,
        ha="right" if tilt else "center",
    )  # fmt: skip
    ax.set_yscale("log")
    _time_ticks(ax.yaxis, ax.get_ylim())
    title = "Completion time per policy: box 25..75%, whiskers 5..95%, bar median, diamond mean"
    _decorate(ax, title, "", "completion time (log scale)")
    ax.title.set_fontsize(10)


_ABOUT_USE = (
    "Averages per interval from the first submission to the last end, of all jobs of a run and of "
    "background jobs. A policy that ends earlier does the same work in less time."
)
_ABOUT_POWER = (
    "Averages per interval by the size tables of the jobs, idle GPUs included. A horizontal "
    "line is a limit."
)
_ABOUT_WAIT = "Average wait of the jobs submitted in each interval, from the first submission on."
_ABOUT_BOXES = "The same numbers as boxes; values outside the whiskers are not drawn."
_ABOUT_RATIO = (
    "Completion time of each job divided by that of the same job under the first policy: left of 1 "
    "it gains, right of 1 it loses."
)
_ABOUT_JCT = "From submission to end. A curve further left is better."
_ABOUT_SLOWDOWN = "Time on GPUs / duration in the trace; 1 is the median GPU inside one node."
Picture = tuple[str, str, str, Draw]
PICTURES: tuple[Picture, ...] = (
    ("jct-cdf", "How long jobs took", _ABOUT_JCT, _jct_cdf),
    ("jct-boxes", "Completion time per policy", _ABOUT_BOXES, _boxes),
    ("jct-ratio", "Which jobs gain and which lose", _ABOUT_RATIO, _each_job),
    ("wait", "How long jobs waited", _ABOUT_WAIT, _wait_over_time),
    ("gpus-in-use", "GPUs in use", _ABOUT_USE, _gpus_over_time),
    ("slowdown", "Slowdown per class", _ABOUT_SLOWDOWN, _slowdown_per_class),
)
"""File's name, title, explanation, function that draws."""
POWER_PICTURE: Picture = ("power", "Power over time", _ABOUT_POWER, _power_over_time)
"""The same, where the power of a run is known."""
