"""Section on drift: scores over time, and the GPUs that became slower."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.page.blocks import Block, Chart, Link, Sentences, Side, Table
from slurm_gpu_aware.page.drawing import Curve, chart
from slurm_gpu_aware.page.sections import Section, Source
from slurm_gpu_aware.store.profiles import alarms, gpu_history, judged_pairs
from slurm_gpu_aware.time_text import stamp
from slurm_gpu_aware.variability.drift import Change, Drift, drift

DAYS = 90
MOST_CURVES = 6  # GPUs of a class whose scores are drawn.
_SINCE_S = 30 * 86_400.0
"""Age of the measurements with which the newest ones are compared, as in `drift --since`."""
_SAMPLE = 96  # GPUs of a model with which the drawn ones are compared.
_MOST_MODELS = 16
_MOST_ROWS = 100
_POINTS = 90
_BAND = (5, 95)

Points = Sequence[tuple[float, float]]  # (Unix time, value).


@dataclass(frozen=True)
class History:
    """Scores of a class over time."""

    app_class: str
    curves: Mapping[Gpu, Points]  # The GPUs with the largest rises and the highest scores.
    band: Sequence[tuple[float, float, float]]
    """(Unix time, 5th and 95th percentile of the scores of the GPUs that were compared)."""


@dataclass(frozen=True)
class DriftFacts:
    """What the section shows."""

    drift: Drift
    histories: Sequence[History]
    compared: int  # GPUs whose measurements were read for the charts.


def read_drift(source: Source) -> DriftFacts:
    """Read the store. Raises StoreError."""
    store, since = source.store, source.now - _SINCE_S
    pairs = judged_pairs(store, since, source.config.site.classes)
    found = drift(pairs, least=source.config.profiling.slower_percent / 100.0)
    scores = source.scores
    models = {(score.node, score.slot): score.model or "" for score in scores}
    reported = [(alarm.app_class, (alarm.node, alarm.slot)) for alarm in alarms(store)]
    rose = [(change.app_class, (change.node, change.slot)) for change in found.slower]
    highest = [(one.app_class, (one.node, one.slot)) for one in reversed(scores)]
    shown = _first_of_each((*rose, *reported, *highest))
    read = {gpu: models.get(gpu, "") for gpus in shown.values() for gpu in gpus}
    read |= {gpu: models[gpu] for gpu in _sample(models)}
    runs = {gpu: gpu_history(store, *gpu, source.now - DAYS * 86_400.0) for gpu in read}
    histories = [scores_over_time(name, gpus, read, runs) for name, gpus in sorted(shown.items())]
    return DriftFacts(found, histories, len(read))


def _first_of_each(wanted: Iterable[tuple[str, Gpu]]) -> dict[str, list[Gpu]]:
    """Class -> its first GPUs."""
    found: dict[str, list[Gpu]] = {}
    for name, gpu in wanted:
        own = found.setdefault(name, [])
        if len(own) < MOST_CURVES and gpu not in own:
            own.append(gpu)
    return found


def _sample(models: Mapping[Gpu, str]) -> list[Gpu]:
    """GPUs of each model, evenly over the names of the nodes."""
    by_model: dict[str, list[Gpu]] = {}
    for gpu, model in sorted(models.items()):
        by_model.setdefault(model, []).append(gpu)
    found = []
    for own in sorted(by_model.values(), key=len, reverse=True)[:_MOST_MODELS]:
        found += own[:: max(1, math.ceil(len(own) / _SAMPLE))]
    return found


def scores_over_time(
    app_class: str,
    shown: Sequence[Gpu],
    models: Mapping[Gpu, str],
    runs: Mapping[Gpu, Sequence[tuple[str, float, float]]],
) -> History:
    """Scores of a class.

    ``shown``: GPUs that get a curve. ``models``: all GPUs that were read. ``runs``: of
    `gpu_history`. The time is cut into `_POINTS` spans or less; a GPU has its newest time up to the
    end of a span, and its score there is this over the median of its model.
    """
    own: dict[Gpu, dict[float, list[float]]] = {}
    for gpu in models:
        for name, at, value in runs.get(gpu, ()):
            if name == app_class:
                own.setdefault(gpu, {}).setdefault(at, []).append(value)
    moments = [at for times in own.values() for at in times]
    if not moments:
        return History(app_class, {}, ())
    ends = np.unique(np.linspace(min(moments), max(moments), _POINTS))
    gpus = list(own)
    table = np.full((len(gpus), len(ends)), np.nan)
    for row, gpu in enumerate(gpus):
        for at in sorted(own[gpu]):
            table[row, int(np.searchsorted(ends, at)) :] = median(own[gpu][at])
    kinds = np.array([models[gpu] for gpu in gpus])
    there = ~np.isnan(table)
    for kind in set(kinds.tolist()):
        rows = kinds == kind
        filled = there[rows].any(axis=0)
        table[np.ix_(rows, filled)] /= np.nanmedian(table[np.ix_(rows, filled)], axis=0)
    curves = {}
    for row, gpu in enumerate(gpus):
        if gpu in shown:
            spans = sorted({int(np.searchsorted(ends, moment)) for moment in own[gpu]})
            curves[gpu] = [(float(ends[i]), float(table[row, i])) for i in spans]
    low, high = np.nanpercentile(table, _BAND, axis=0)
    band = list(zip(ends.tolist(), low.tolist(), high.tolist(), strict=True))
    return History(app_class, {gpu: curves[gpu] for gpu in shown if gpu in curves}, band)


# -- blocks ----------------------------------------------------------------------------------------


def drift_blocks(facts: DriftFacts) -> list[Block]:
    """Charts of the classes, and a table."""
    if not facts.histories:
        text = "No GPU has been measured yet: 'gpu-aware-profile sweep' or 'import' does that."
        return [Sentences([text])]
    charts = [one for one in map(_chart, facts.histories) if one is not None]
    about = [
        f"Scores of the last {DAYS} days: the time of a GPU over that of the median GPU of its"
        f" model at that moment. Drawn are the GPUs that became slower, then the slowest ones.",
    ]
    return [Sentences(about), *([Side(charts)] if charts else []), _slower(facts.drift)]


def _chart(history: History) -> Chart | None:
    curves = [
        Curve(_named(gpu, points), points) for gpu, points in history.curves.items() if points
    ]
    low, high = _BAND
    return chart(
        f"Class {history.app_class}",
        f"PM scores of class {history.app_class} over time",
        curves,
        history.band,
        band_name=f"{low}% to {high}% of the GPUs",
    )


def _named(gpu: Gpu, points: Points) -> Link:
    text = f"{gpu[0]}:{gpu[1]}, {points[0][1]:.3f} to {points[-1][1]:.3f}"
    return Link(text, f"nodes/{gpu[0]}.html")


def _slower(found: Drift) -> Block:
    title = "GPUs that became slower"
    if not found.changes:
        return Sentences(["Nothing to compare: no GPU was measured twice."], title)
    if not found.slower:
        return Sentences(["None beyond the spread of the runs."], title)
    rows = [_row(change) for change in found.slower[:_MOST_ROWS]]
    headers = ["GPU", "class", "before", "now", "rise", "spread", "compared with"]
    more = len(found.slower) - _MOST_ROWS
    told = f"... and {more} more: gpu-aware-profile drift" if more > 0 else ""
    return Table(headers, rows, headers[2:6], title, told)


def _row(change: Change) -> list[object]:
    return [
        Link(f"{change.node}:{change.slot}", f"nodes/{change.node}.html"),
        change.app_class,
        f"{change.before:.3f}",
        f"{change.now:.3f}",
        f"{change.rise:+.1%}",
        f"{change.threshold:.1%}",
        stamp(change.before_at)[:10],
    ]


DRIFT = Section("drift", "Drift", read_drift, drift_blocks)
