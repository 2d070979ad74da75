"""Output of times and scores: tables of ``show``, CSV and JSON of ``export``."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from gpu_aware_profile.import_rows import TIMING_COLUMNS
from slurm_gpu_aware.cli.output import table
from slurm_gpu_aware.model.profile import Fault, GpuScore, GpuTiming
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.profiles import load_profile, score_rows
from slurm_gpu_aware.store.times import level_times
from slurm_gpu_aware.time_text import age

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "ClassSummary",
    "everything",
    "fault_table",
    "records",
    "score_records",
    "score_table",
    "summarise",
    "summary_table",
    "write_csv",
    "write_scores_csv",
    "write_timings_csv",
]

OUTLIER_WORDS = ("", "outlier", "own score")


@dataclass(frozen=True)
class ClassSummary:
    """Spread of one class on one GPU model."""

    app_class: str
    model: str | None
    gpus: int
    bins: int
    """Distinct scores after binning."""
    outliers: int
    best: float
    """Lowest PM score."""
    worst: float
    geomean_over_best: float
    """Geometric mean of value / best value, minus 1: the "variability" of the papers."""
    oldest_at: float
    """Unix time of the oldest timing of a score."""


def write_csv(stream: IO[str], columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV; None becomes an empty cell."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)


def write_timings_csv(stream: IO[str], timings: Sequence[GpuTiming]) -> None:
    """Write timings losslessly as CSV for ``import``."""
    rows = ((t.slot, t.node, t.app_class, repr(t.value_ms)) for t in timings)
    write_csv(stream, TIMING_COLUMNS, rows)


def write_scores_csv(stream: IO[str], rows: Sequence[GpuScore]) -> None:
    """Write scores as CSV; ``import`` reads its timings."""
    flat = score_records(rows)
    write_csv(stream, list(flat[0]) if flat else TIMING_COLUMNS, (r.values() for r in flat))


def records(rows: Sequence[DataclassInstance]) -> list[dict[str, Any]]:
    """One flat record per row, for JSON and CSV; ``class`` instead of ``app_class``."""
    return [
        {("class" if key == "app_class" else key): value for key, value in asdict(row).items()}
        for row in rows
    ]


def score_records(rows: Sequence[GpuScore]) -> list[dict[str, Any]]:
    """One flat record per GPU and class, for JSON and CSV."""
    return [
        {
            "gpu": r.slot,
            "node": r.node,
            "class": r.app_class,
            "value_ms": r.value_ms,
            "pm_score": r.raw,
            "score": r.binned,
            "bin": r.bin,
            "outlier": r.outlier,
            "model": r.model,
            "uuid": r.uuid,
            "taken_at": r.taken_at,
        }
        for r in rows
    ]


def everything(store: Store) -> dict[str, Any]:
    """The whole profile, JSON-able: GPUs, links, timings, scores, times per level."""
    from gpu_aware_profile.scoring import newest_timings  # imports NumPy

    profile = load_profile(store)
    return {
        "schema": "gpu-aware-profile/1",
        "nodes": [{"node": n, "taken_at": at} for n, at in profile.taken_at.items()],
        "gpus": [{"node": n, "gpu": i, **asdict(g)} for (n, i), g in profile.gpus.items()],
        "links": [
            {"node": n, "a": k.a, "b": k.b, "class": k.link_class, "gbps": k.gbps}
            for n, links in profile.links.items()
            for k in links
        ],
        "timings": [
            {
                "node": t.node,
                "gpu": t.slot,
                "class": t.app_class,
                "value_ms": t.value_ms,
                "taken_at": t.taken_at,
            }
            for t in newest_timings(store)
        ],
        "scores": score_records(score_rows(store)),
        "level_times": [
            {"class": t.app_class, "level": t.level, "value_ms": t.value_ms, "model": t.model}
            for t in level_times(store)
        ],
    }


def summarise(rows: Sequence[GpuScore]) -> list[ClassSummary]:
    """Spread per class and model, in that order."""
    groups: dict[tuple[str, str], list[GpuScore]] = {}
    for row in rows:
        groups.setdefault((row.app_class, row.model or ""), []).append(row)
    return [_summary(name, model, groups[name, model]) for name, model in sorted(groups)]


def summary_table(summaries: Sequence[ClassSummary], now: float) -> str:
    """Table of :func:`summarise`."""
    return table(
        ("class", "model", "GPUs", "bins", "outliers", "best", "worst", "spread", "age"),
        [
            (
                s.app_class,
                s.model,
                s.gpus,
                s.bins,
                s.outliers,
                f"{s.best:.3f}",
                f"{s.worst:.3f}",
                f"{s.geomean_over_best:.1%}",
                age(now - s.oldest_at),
            )
            for s in summaries
        ],
        right=("GPUs", "bins", "outliers", "best", "worst", "spread"),
    )


def score_table(rows: Sequence[GpuScore], now: float) -> str:
    """Table of scores in the given order."""
    return table(
        ("class", "node", "GPU", "model", "ms", "PM score", "score", "note", "age"),
        [
            (
                r.app_class,
                r.node,
                r.slot,
                r.model,
                f"{r.value_ms:.5g}" if r.value_ms < 1e5 else f"{r.value_ms:.0f}",
                f"{r.raw:.4f}",
                f"{r.binned:.4f}",
                OUTLIER_WORDS[r.outlier],
                age(now - r.taken_at),
            )
            for r in rows
        ],
        right=("GPU", "ms", "PM score", "score"),
    )


def fault_table(faults: Mapping[str, Sequence[Fault]]) -> str:
    """Table of failed calls in the newest probes."""
    return table(
        ("node", "GPU", "call", "error"),
        [(node, f.slot, f.call, f.error) for node, found in faults.items() for f in found],
        right=("GPU",),
    )


def _summary(app_class: str, model: str, rows: Sequence[GpuScore]) -> ClassSummary:
    raw = [r.raw for r in rows]
    best = min(raw)
    return ClassSummary(
        app_class=app_class,
        model=model or None,
        gpus=len(rows),
        bins=len({r.binned for r in rows}),
        outliers=sum(r.outlier > 0 for r in rows),
        best=best,
        worst=max(raw),
        geomean_over_best=math.exp(math.fsum(math.log(v / best) for v in raw) / len(raw)) - 1.0,
        oldest_at=min(r.taken_at for r in rows),
    )
