"""Output of times, scores and penalties: records for JSON and CSV, tables for users.

Views of records: the columns of a table, described once for the terminal and for a page.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

import click

from slurm_gpu_aware.cli.output import table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.hardware_graph import OPERATIONS
from slurm_gpu_aware.model.penalties import (
    LevelPenalties,
    LevelTime,
    level_medians,
    level_ratios,
    reference_of,
)
from slurm_gpu_aware.model.profile import Fault, GpuScore
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import (
    level_times,
    newest_bandwidths,
    newest_collectives,
    nics_of,
)
from slurm_gpu_aware.store.profiles import (
    load_profile,
    newest_run_records,
    newest_runs,
    node_records,
    score_rows,
)
from slurm_gpu_aware.time_text import duration

Row = Mapping[str, Any]
_COLUMN = re.compile(r"(>?)([^=:]+)(?:=(\w+))?(?::(.+))?\Z")
Record = dict[str, Any]  # Name in the output -> value.
LEVEL_TIME = ("class", "level", "value_ms", "model")
SCORE = (
    *("gpu", "node", "class", "value_ms", "pm_score", "score", "bin", "outlier"),
    *("model", "uuid", "taken_at"),
)
OUTLIER = ("node", "gpu", "class", "model", "ratio")
CHANGE = (
    *("node", "gpu", "class", "model", "before", "now", "rise", "threshold", "runs"),
    *("before_at", "now_at"),
)
SHIFT = ("class", "model", "gpus", "ratio")
"""Names of the values of a `LevelTime`, `GpuScore`, `Outlier`, `Change`, and `Shift`."""
_ATTRIBUTES = {"gpu": "slot", "class": "app_class", "pm_score": "raw", "score": "binned"}
"""Name in the output -> attribute, if they differ."""
_OUTLIER_WORDS = ("", "outlier", "own score")


class View:
    """A table of records.

    ``columns``: ``HEADER=NAME:FORMAT`` each, with commas between them. NAME: of the value in a
    record, if it differs from the header. FORMAT: as `format` takes it, or ``ago``: the age of a
    Unix time. ``>`` before it: to the right.
    """

    def __init__(self, columns: str) -> None:
        found = [_COLUMN.match(column) for column in columns.split(", ")]
        parts = [match.groups() for match in found if match]
        self.headers = [header for _, header, _, _ in parts]
        self._right = [header for right, header, _, _ in parts if right]
        self._values = [(name or header, form or "") for _, header, name, form in parts]

    def cells(self, rows: Iterable[Row], ago: Callable[[float], str]) -> list[list[object]]:
        """The cells of each record. ``ago``: text of the age of a Unix time."""
        return [[_cell(row[name], form, ago) for name, form in self._values] for row in rows]

    def text(self, rows: Iterable[Row], now: float = 0.0) -> str:
        """The table for the terminal. ``now``: Unix time."""
        cells = self.cells(rows, lambda at: duration(now - at))
        return table(self.headers, cells, right=self._right)

    def show(self, rows: list[Row]) -> None:
        """Print an empty line and the table, unless there is no record."""
        if rows:
            click.echo(f"\n{self.text(rows)}")


def _cell(value: Any, form: str, ago: Callable[[float], str]) -> object:
    if value is None or not form:
        return value
    return ago(value) if form == "ago" else format(value, form)


SUMMARY = View(
    "class, model, >GPUs=gpus, >bins, >outliers, >best:.3f, >worst:.3f,"
    " >spread=geomean_over_best:.1%, age=oldest_at:ago"
)
CHANGES = View(
    "class, node, >GPU=gpu, model, >before:.3f, >now:.3f, >rise:+.1%, >spread=threshold:.1%, >runs,"
    " since=before_at:ago"
)
_SCORES = View(
    "class, node, >GPU=gpu, model, >ms, >PM score=pm_score:.4f, >score:.4f, note, age=taken_at:ago"
)
_PENALTIES = View(
    "class, level, model, >ms=value_ms:.5g, >runs, >ratio:.4f, >L=penalty:.4f, from=source"
)


def records(items: Iterable[object], names: Sequence[str]) -> list[Record]:
    """One flat record per item."""
    return [{name: getattr(item, _ATTRIBUTES.get(name, name)) for name in names} for item in items]


def write_csv(stream: IO[str], rows: Iterable[Record], columns: Sequence[str]) -> None:
    """Write these columns of records losslessly; None becomes an empty cell."""
    writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def timing_records(store: Store) -> list[Record]:
    """The newest measurement of each GPU and class."""
    from slurm_gpu_aware.variability.scores import median_runs  # imports NumPy

    return records(
        median_runs(newest_runs(store)), ("node", "gpu", "class", "value_ms", "taken_at")
    )


def everything(store: Store) -> Record:
    """The whole profile, JSON-able: GPUs, NICs, links, timings, runs, scores, times per level."""
    profile = load_profile(store)
    return {
        "schema": "gpu-aware-profile/1",
        "nodes": node_records(store),
        "gpus": [{"node": n, "gpu": i, **asdict(g)} for (n, i), g in profile.gpus.items()],
        "links": [
            {"node": n, "a": k.a, "b": k.b, "class": k.link_class, "gbps": k.gbps}
            for n, links in profile.links.items()
            for k in links
        ],
        "nics": [
            {"node": node, **nic._asdict()}
            for node in profile.taken_at
            for nic in nics_of(store, node)
        ],
        "bandwidths": [pair._asdict() for pair in newest_bandwidths(store)],
        "collectives": [
            one._asdict() for name in OPERATIONS for one in newest_collectives(store, name)
        ],
        "timings": timing_records(store),
        "runs": newest_run_records(store),
        "scores": records(score_rows(store), SCORE),
        "level_times": records(level_times(store), LEVEL_TIME),
    }


def fault_records(faults: Mapping[str, Sequence[Fault]]) -> list[Record]:
    """Failed calls in the newest probe of each node."""
    return [
        {"node": node, "gpu": fault.slot, "call": fault.call, "error": fault.error}
        for node, found in faults.items()
        for fault in found
    ]


def summarise(rows: Sequence[GpuScore]) -> list[Record]:
    """Spread per class and model, in that order.

    ``bins`` counts distinct scores after binning; ``geomean_over_best`` is the geometric mean of
    value / best value, minus 1: the "variability" of the papers; ``oldest_at`` is the Unix time of
    the oldest timing of a score.
    """
    groups: dict[tuple[str, str], list[GpuScore]] = {}
    for row in rows:
        groups.setdefault((row.app_class, row.model or ""), []).append(row)
    summaries = []
    for (app_class, model), own in sorted(groups.items()):
        raw = [row.raw for row in own]
        best = min(raw)
        logs = math.fsum(math.log(value / best) for value in raw)
        summary = {
            "class": app_class,
            "model": model or None,
            "gpus": len(own),
            "bins": len({row.binned for row in own}),
            "outliers": sum(row.outlier > 0 for row in own),
            "best": best,
            "worst": max(raw),
            "geomean_over_best": math.exp(logs / len(raw)) - 1.0,
            "oldest_at": min(row.taken_at for row in own),
        }
        summaries.append(summary)
    return summaries


def score_table(rows: Sequence[GpuScore], now: float) -> str:
    """Table of scores in the given order."""
    shown = [
        {
            **record,
            "note": _OUTLIER_WORDS[record["outlier"]],
            "ms": f"{record['value_ms']:{'.5g' if record['value_ms'] < 1e5 else '.0f'}}",
        }
        for record in records(rows, SCORE)
    ]
    return _SCORES.text(shown, now)


def penalties_of(store: Store, config: Config, only: Sequence[str] = ()) -> list[Record]:
    """L of the site's classes (``only``: of these) with the measurements.

    Raises StoreError for an unknown class.
    """
    known = config.site.classes
    for name in only:
        if name not in known:
            raise StoreError(f"class {name!r} is not one of {', '.join(known)}")
    times = level_times(store)
    penalties = config.placement.penalties_with(level_ratios(times))
    return penalty_records(times, penalties, [name for name in known if not only or name in only])


def penalty_records(
    times: Sequence[LevelTime], penalties: LevelPenalties, classes: Sequence[str]
) -> list[Record]:
    """L of ``classes`` at the levels in use, tightest level first; one record per model.

    ``value_ms`` is a median, ``ratio`` is over the median at the innermost level (both None: not
    measured), ``penalty`` is L for placement, ``source`` as in `penalties.Penalty`.
    """
    runs = Counter((time.app_class, time.model, time.level) for time in times)
    medians = level_medians(times)
    found = []
    for app_class in classes:
        models = [model for name, model in medians if name == app_class] or [""]
        for level, (penalty, source) in penalties.of(app_class).items():
            for model in models:
                own = medians.get((app_class, model), {})
                inner, there = own.get(reference_of(own) or ""), own.get(level)
                record = {
                    "class": app_class,
                    "level": level,
                    "model": model or None,
                    "value_ms": there,
                    "runs": runs[app_class, model, level],
                    "ratio": there / inner if there is not None and inner is not None else None,
                    "penalty": penalty,
                    "source": source,
                }
                found.append(record)
    return found


def penalty_table(rows: Sequence[Record]) -> str:
    """Table of :func:`penalty_records`."""
    return _PENALTIES.text({**row, "runs": row["runs"] or None} for row in rows)
