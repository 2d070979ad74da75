"""Output of times per locality level and of the penalties that follow from them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from gpu_aware_profile.import_file import LEVEL_COLUMNS
from slurm_gpu_aware.cli.output import table
from slurm_gpu_aware.model.penalties import (
    LevelPenalties,
    LevelTime,
    level_medians,
    level_ratios,
    reference_of,
)

__all__ = [
    "PenaltyRow",
    "hidden",
    "penalty_records",
    "penalty_rows",
    "penalty_table",
    "write_levels_csv",
    "write_penalties_csv",
]


@dataclass(frozen=True)
class PenaltyRow:
    """L of one class at one level, and what was measured there."""

    app_class: str
    level: str
    model: str | None
    value_ms: float | None
    """Median; None: not measured."""
    runs: int
    ratio: float | None
    """Time over that of the innermost level; of the same model."""
    penalty: float
    """L as placement uses it."""
    source: str
    """As in `penalties.Penalty`."""


def write_levels_csv(stream: IO[str], times: Sequence[LevelTime]) -> None:
    """Write times so that ``import`` reads them again without loss."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*LEVEL_COLUMNS, "model"))
    for time in times:
        writer.writerow((time.app_class, time.level, repr(time.value_ms), time.model))


def penalty_rows(
    times: Sequence[LevelTime], penalties: LevelPenalties, classes: Sequence[str]
) -> list[PenaltyRow]:
    """L of each of ``classes`` at each level in use, tightest level first; a row per model."""
    runs: dict[tuple[str, str, str], int] = {}
    for time in times:
        key = (time.app_class, time.model, time.level)
        runs[key] = runs.get(key, 0) + 1
    medians = level_medians(times)
    rows = []
    for app_class in classes:
        models = [model for name, model in medians if name == app_class] or [""]
        for level, (penalty, source) in penalties.of(app_class).items():
            for model in models:
                own = medians.get((app_class, model), {})
                inner = own.get(reference_of(own) or "")
                there = own.get(level)
                ratio = there / inner if there is not None and inner is not None else None
                count = runs.get((app_class, model, level), 0)
                rows.append(
                    PenaltyRow(
                        app_class, level, model or None, there, count, ratio, penalty, source
                    )
                )
    return rows


def penalty_table(rows: Sequence[PenaltyRow]) -> str:
    """Table of :func:`penalty_rows`."""
    return table(
        ("class", "level", "model", "ms", "runs", "ratio", "L", "from"),
        [
            (
                r.app_class,
                r.level,
                r.model,
                None if r.value_ms is None else f"{r.value_ms:.5g}",
                r.runs or None,
                None if r.ratio is None else f"{r.ratio:.4f}",
                f"{r.penalty:.4f}",
                r.source,
            )
            for r in rows
        ],
        right=("ms", "runs", "ratio", "L"),
    )


def penalty_records(rows: Sequence[PenaltyRow]) -> list[dict[str, Any]]:
    """For JSON and CSV; ``class`` as everywhere else."""
    return [
        {("class" if key == "app_class" else key): value for key, value in asdict(r).items()}
        for r in rows
    ]


def write_penalties_csv(stream: IO[str], rows: Sequence[PenaltyRow]) -> None:
    """Write what ``show --levels`` shows."""
    writer = csv.writer(stream, lineterminator="\n")
    records = penalty_records(rows)
    if records:
        writer.writerow(records[0])
        writer.writerows(["" if v is None else v for v in r.values()] for r in records)


def hidden(times: Sequence[LevelTime], penalties: LevelPenalties) -> list[str]:
    """Measured penalties that do not count as they were measured, in a sentence each."""
    found = []
    for app_class, ratios in level_ratios(times).items():
        for level, ratio in list(ratios.items())[1:]:  # the first is the one to compare with
            value, source = penalties.of(app_class)[level]
            if source != "measured" and abs(value - ratio) > 5e-5:
                what = f"{ratio:.4g} was measured, {value:.4g} counts ({source})"
                found.append(f"class {app_class}, level {level}: {what}")
    return found
