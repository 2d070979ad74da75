"""Pictures and one self-contained page from a folder of results.

Readable without colour: every policy has its own line style and marker, and bars carry hatches.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.files import SavedRun, load_results
from slurm_gpu_aware.simulator.recorded import RECORDED

__all__ = ["plain_summary", "write_report"]

_STYLES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (5, 1)), "v"), ((0, (1, 1)), "P"))
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000")
_BINS = 60
_MARKS = 12

Draw = Callable[[Any, Sequence[SavedRun], Mapping[str, Any]], None]


def write_report(folder: Path) -> list[Path]:
    """Write ``report.html`` and its pictures into a folder of results; return what was written.

    Raises
    ------
    SourceError
        It is no folder of results, holds no finished job, or cannot be written.
    """
    head, runs = load_results(folder)
    if not any(len(run.columns["jct_s"]) for run in runs):
        raise SourceError(f"{folder}: no job ended in any run, nothing to draw")
    runs = [run for run in runs if len(run.columns["jct_s"])]
    try:
        pictures = [
            (title, text, _picture(folder / f"{name}.png", draw, runs, head))
            for name, title, text, draw in _PICTURES
        ]
        page = folder / "report.html"
        page.write_text(_page(head, runs, pictures), encoding="utf-8")
    except OSError as exc:
        raise SourceError(f"{folder}: cannot be written: {exc.strerror}") from None
    return [page, *(path for _, _, path in pictures)]


def _picture(path: Path, draw: Draw, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.add_subplot(), runs, head)
    figure.savefig(path, dpi=110)
    return path


def _unit(seconds: float) -> tuple[float, str]:
    """Divisor and name of a unit in which a time of this size reads well."""
    for size, name in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * size:
            return size, name
    return 1.0, "seconds"


def _line(ax: Any, number: int, x: Any, y: Any, label: str, **more: Any) -> None:
    style, marker = _STYLES[number % len(_STYLES)]
    every = max(1, len(x) // _MARKS)
    start = (number * every) // 6
    ax.plot(
        x, y, label=label, linestyle=style, color=_COLOURS[number % len(_COLOURS)], marker=marker,
        markevery=(start, every), markersize=5, **more,
    )  # fmt: skip


def _decorate(ax: Any, title: str, x: str, y: str, *, legend: bool = True) -> None:
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(visible=True, alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(frameon=False)


def _jct_cdf(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    size, name = _unit(float(np.median([np.median(r.columns["jct_s"]) for r in runs])))
    for number, run in enumerate(runs):
        jct = np.sort(run.columns["jct_s"]) / size
        share = np.arange(1, len(jct) + 1) / len(jct) * 100
        _line(ax, number, np.maximum(jct, 1e-9), share, run.label)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_ylim(0, 101)
    _decorate(ax, "Job completion time", f"completion time, {name} (log scale)", "share of jobs, %")


def _wait_over_time(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    last = max(float(r.columns["submit_s"].max()) for r in runs)
    size, name = _unit(last)
    edges = np.linspace(0, max(last, 1.0) * (1 + 1e-9), min(_BINS, 12 + len(runs)) + 1)
    means = []
    for run in runs:
        place = np.digitize(run.columns["submit_s"], edges) - 1
        count = np.bincount(place, minlength=len(edges) - 1)
        total = np.bincount(place, weights=run.columns["wait_s"], minlength=len(edges) - 1)
        means.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    wait_size, wait_name = _unit(float(np.nanmax(means)))
    middle = (edges[1:] + edges[:-1]) / 2 / size
    for number, (run, mean) in enumerate(zip(runs, means, strict=True)):
        there = np.isfinite(mean)
        _line(ax, number, middle[there], mean[there] / wait_size, run.label)
    ax.set_ylim(bottom=0)
    _decorate(ax, "Wait by time of submission", f"submission, {name}", f"average wait, {wait_name}")


def _gpus_over_time(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    last = max(float(r.used_s[-1]) for r in runs)
    size, name = _unit(last)
    edges = np.linspace(0, max(last, 1.0), 2 * _BINS + 1)
    for number, run in enumerate(runs):
        area = np.concatenate([[0.0], np.cumsum(np.diff(run.used_s) * run.used_gpus[:-1])])
        mean = np.diff(np.interp(edges, run.used_s, area)) / np.diff(edges)
        _line(ax, number, (edges[1:] + edges[:-1]) / 2 / size, mean, run.label)
    total = head["site"]["gpus"]
    ax.axhline(total, color="black", linewidth=0.8)
    ax.annotate(f"all {total} GPUs", (0, total), xytext=(2, 3), textcoords="offset points")
    ax.set_ylim(0, total * 1.12)
    _decorate(ax, "GPUs in use", f"time, {name}", "GPUs", legend=False)
    ax.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.9))


def _slowdown_per_class(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    classes = sorted({name for run in runs for name in run.app_class})
    width = 0.8 / len(runs)
    for number, run in enumerate(runs):
        own = np.array(run.app_class)
        means = [
            float(run.columns["slowdown"][own == name].mean()) if (own == name).any() else np.nan
            for name in classes
        ]
        at = np.arange(len(classes)) + (number - (len(runs) - 1) / 2) * width
        ax.bar(
            at, means, width * 0.9, label=run.label, color=_COLOURS[number % len(_COLOURS)],
            hatch=_HATCHES[number % len(_HATCHES)], edgecolor="white",
        )  # fmt: skip
        for x, mean in zip(at, means, strict=True):
            if np.isfinite(mean):
                ax.annotate(
                    f"{mean:.2f}", (x, mean), ha="center", va="bottom", fontsize=8,
                    xytext=(0, 1), textcoords="offset points",
                )  # fmt: skip
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xticks(range(len(classes)), classes)
    ax.set_ylim(0, ax.get_ylim()[1] * 1.25)
    _decorate(ax, "Slowdown per class", "application class", "time on GPUs / time on median GPUs")


def _boxes(ax: Any, runs: Sequence[SavedRun], head: Mapping[str, Any]) -> None:
    jct = [run.columns["jct_s"] for run in runs]
    size, name = _unit(float(np.median(np.concatenate(jct))))
    parts = ax.boxplot(
        [values / size for values in jct], whis=(5, 95), showfliers=False, showmeans=True,
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
    ax.set_ylim(bottom=0)
    _decorate(
        ax,
        "Completion time per policy: box 25..75%, whiskers 5..95%, bar median, diamond mean",
        "",
        f"completion time, {name}",
        legend=False,
    )
    ax.title.set_fontsize(10)


_PICTURES: tuple[tuple[str, str, str, Draw], ...] = (
    (
        "jct-cdf",
        "How long jobs took",
        "From submission to end. A curve further left is better.",
        _jct_cdf,
    ),
    (
        "jct-boxes",
        "Completion time per policy",
        "The same numbers as boxes; outside the whiskers nothing is drawn.",
        _boxes,
    ),
    (
        "wait",
        "How long jobs waited",
        "Average wait of the jobs submitted in each stretch of time.",
        _wait_over_time,
    ),
    (
        "gpus-in-use",
        "GPUs in use",
        "Averages over stretches of time. A policy that ends earlier did the same work sooner.",
        _gpus_over_time,
    ),
    (
        "slowdown",
        "Slowdown per class",
        "Time on GPUs over the time that the trace gives; 1 is the median GPU inside one node.",
        _slowdown_per_class,
    ),
)


def plain_summary(head: Mapping[str, Any]) -> list[str]:
    """What the numbers say, one sentence per policy after the first."""
    runs = head["runs"]
    first = runs[0]
    if len(runs) == 1 or first["avg_jct_s"] is None:
        return [f"{first['policy']}: {first['jobs']} jobs ended."]
    past = first["policy"] == RECORDED
    where = f"On {head['trace']}" if past else f"On {head['trace']}, against {first['policy']}"
    found = []
    for run in runs[1:]:
        if run["avg_jct_s"] is None:
            continue
        saved = first["avg_jct_s"] - run["avg_jct_s"]
        percent = 100 * saved / first["avg_jct_s"]
        verb = "would have been" if past else "is"
        sense = "shorter" if saved >= 0 else "longer"
        text = (
            f"{where}, average completion time with {run['policy']} {verb} "
            f"{abs(percent):.1f}% {sense}"
        )
        if saved > 0:
            text += f"; {_where_from(saved, first['avg_run_s'] - run['avg_run_s'])}"
        found.append(f"{text}.")
    return found


def _where_from(saved: float, on_gpus: float) -> str:
    """Split what was saved by time on GPUs; the rest is waiting, also that of preempted jobs."""
    if on_gpus < 0:
        return "all of it from less waiting, runs took longer"
    if on_gpus > saved:
        return "all of it from faster runs, jobs waited longer"
    return f"{100 * (1 - on_gpus / saved):.0f}% of it from less waiting, the rest from faster runs"


def _page(
    head: Mapping[str, Any], runs: Sequence[SavedRun], pictures: Sequence[tuple[str, str, Path]]
) -> str:
    def cell(value: Any, form: str = "{}") -> str:
        return "<td>" + ("n/a" if value is None else html.escape(form.format(value))) + "</td>"

    rows = "".join(
        "<tr>"
        + cell(r["policy"])
        + cell(r["jobs"])
        + cell(_hours(r["avg_jct_s"]))
        + cell(_hours(r["median_jct_s"]))
        + cell(_hours(r["p99_jct_s"]))
        + cell(_hours(r["avg_wait_s"]))
        + cell(r["avg_slowdown"], "{:.3f}")
        + cell(_hours(r["makespan_s"]))
        + cell(100 * r["utilization"], "{:.0f}%")
        + cell(r["fragmentation"], "{:.1%}")
        + cell(r["placement_ms"]["median"], "{:.2f}")
        + cell(r["placement_ms"]["max"], "{:.1f}")
        + "</tr>"
        for r in head["runs"]
    )
    names = (
        "policy", "jobs", "avg JCT, h", "median JCT, h", "p99 JCT, h", "avg wait, h", "slowdown",
        "makespan, h", "GPUs in use", "fragmentation", "round, ms, median", "round, ms, max",
    )  # fmt: skip
    headers = "".join(f"<th>{name}</th>" for name in names)
    figures = "".join(
        f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>"
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}">'
        for title, text, path in pictures
    )
    says = "".join(f"<li>{html.escape(line)}</li>" for line in plain_summary(head))
    left_out = len(head["input"]["bad_rows"])
    skipped = sum(head["input"]["skipped"].values())
    about = (
        f"{head['input']['jobs']} jobs of {head['trace']} on {head['cluster']}; order "
        f"{head['settings']['order']}; variability: {head['site']['variability']}. "
        f"{left_out} bad rows and {skipped} other jobs were left out."
    )
    title = html.escape(f"Simulation of {head['trace']}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a }}
table {{ border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto }}
td, th {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ccc }}
td:first-child, th:first-child {{ text-align: left }}
img {{ max-width: 100%; height: auto }}
</style></head><body>
<h1>{title}</h1>
<p>{html.escape(about)}</p>
<ul>{says}</ul>
<table><thead><tr>{headers}</tr></thead><tbody>{rows}</tbody></table>
{figures}
</body></html>
"""


def _hours(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds / 3600:.2f}"
