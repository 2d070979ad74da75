"""Locality penalties for output: L of each class and level, and the measurement of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpu_aware_profile.tables import Record
from slurm_gpu_aware.cli.output import table
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

__all__ = ["hidden", "penalties_of", "penalty_records", "penalty_table"]


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
    return table(
        ("class", "level", "model", "ms", "runs", "ratio", "L", "from"),
        [
            (
                *(r["class"], r["level"], r["model"]),
                None if r["value_ms"] is None else f"{r['value_ms']:.5g}",
                r["runs"] or None,
                None if r["ratio"] is None else f"{r['ratio']:.4f}",
                f"{r['penalty']:.4f}",
                r["source"],
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
