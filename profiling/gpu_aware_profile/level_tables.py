"""Output of times per locality level and of the penalties from them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from gpu_aware_profile.import_rows import LEVEL_COLUMNS
from gpu_aware_profile.tables import records, write_csv
from slurm_gpu_aware.cli.output import print_json, table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.penalties import (
    LevelPenalties,
    LevelTime,
    level_medians,
    level_ratios,
    reference_of,
)
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.times import level_times

__all__ = [
    "PenaltyRow",
    "hidden",
    "penalties_of",
    "penalty_rows",
    "penalty_table",
    "show_levels",
    "write_levels_csv",
]


@dataclass(frozen=True)
class PenaltyRow:
    """L of a class at a level, and the measurement of it."""

    app_class: str
    level: str
    model: str | None
    value_ms: float | None
    """Median; None: not measured."""
    runs: int
    ratio: float | None
    """Time / time at the innermost level, of the same model."""
    penalty: float
    """L for placement."""
    source: str
    """As in `penalties.Penalty`."""


def write_levels_csv(stream: IO[str], times: Sequence[LevelTime]) -> None:
    """Write times losslessly as CSV for ``import``."""
    rows = ((t.app_class, t.level, repr(t.value_ms), t.model) for t in times)
    write_csv(stream, (*LEVEL_COLUMNS, "model"), rows)


def penalty_rows(
    times: Sequence[LevelTime], penalties: LevelPenalties, classes: Sequence[str]
) -> list[PenaltyRow]:
    """L of ``classes`` at the levels in use, tightest level first; one row per model."""
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


def hidden(times: Sequence[LevelTime], penalties: LevelPenalties) -> list[str]:
    """A sentence for each measured penalty that placement does not use as measured."""
    sentences = []
    for app_class, ratios in level_ratios(times).items():
        for level, ratio in list(ratios.items())[1:]:  # the first is the reference
            value, source = penalties.of(app_class)[level]
            if source != "measured" and abs(value - ratio) > 5e-5:
                what = f"{ratio:.4g} was measured, {value:.4g} counts ({source})"
                sentences.append(f"class {app_class}, level {level}: {what}")
    return sentences


def penalties_of(store: Store, config: Config, only: Sequence[str] = ()) -> list[PenaltyRow]:
    """L of the site's classes (``only``: of these) with the measurements.

    Raises StoreError for an unknown class.
    """
    known = config.site.classes
    for name in only:
        if name not in known:
            raise StoreError(f"class {name!r} is not one of {', '.join(known)}")
    times = level_times(store)
    penalties = config.placement.penalties_with(level_ratios(times))
    return penalty_rows(times, penalties, [name for name in known if not only or name in only])


def show_levels(
    path: Path, rows: Sequence[PenaltyRow], *, as_json: bool = False, as_csv: bool = False
) -> None:
    """Print the output of ``show --levels``."""
    if as_json:
        print_json({"store": str(path), "penalties": records(rows)})
    elif as_csv:
        if flat := records(rows):
            write_csv(sys.stdout, list(flat[0]), (record.values() for record in flat))
    else:
        click.echo(penalty_table(rows))
