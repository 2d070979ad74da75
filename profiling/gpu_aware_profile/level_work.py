"""Import of times per locality level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_aware_profile.import_file import read_levels
from gpu_aware_profile.level_tables import hidden
from gpu_aware_profile.opening import written
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.penalties import LevelTime, level_ratios
from slurm_gpu_aware.store.levels import LevelRow, check_levels, import_levels
from slurm_gpu_aware.text_file import BadRow, Table
from slurm_gpu_aware.variability.outliers import mixed_units

__all__ = ["checked_levels", "store_levels"]

FAR_LEVEL = 50.0
"""A level that takes longer, or less time, than the innermost one by this factor is an outlier."""


def checked_levels(
    table: Table, app_class: str | None, config: Config
) -> tuple[list[LevelRow], list[BadRow]]:
    """Rows of a file that can be imported, and the others."""
    rows, bad = read_levels(table, app_class)
    good, unfit = check_levels(rows, config.site.classes)
    return good, sorted([*bad, *unfit])


def store_levels(
    path: Path,
    config: Config,
    rows: Sequence[LevelRow],
    taken_at: float,
    *,
    accept_outliers: bool = False,
) -> None:
    """Import checked rows; say what was, and where it does not count as it was measured.

    Raises StoreError if a ratio is beyond ``FAR_LEVEL``, unless ``accept_outliers``.
    """
    if not accept_outliers:
        _refuse_far([row.time for row in rows])
    with written(path, config) as store:
        count = import_levels(store, rows, taken_at=taken_at, classes=config.site.classes)
    times = [row.time for row in rows]
    names = list(dict.fromkeys(time.app_class for time in times))
    plural = "" if len(names) == 1 else "es"
    say(f"imported {count} level times of class{plural} {', '.join(names)} into {path}")
    for sentence in hidden(times, config.placement.penalties_with(level_ratios(times))):
        say(sentence)


def _refuse_far(times: Sequence[LevelTime]) -> None:
    for app_class, ratios in level_ratios(times).items():
        inner = next(iter(ratios))
        for level, ratio in ratios.items():
            if not 1 / FAR_LEVEL <= ratio <= FAR_LEVEL:
                raise StoreError(
                    f"class {app_class} takes {ratio:.3g} times as long at level {level} as at"
                    f" {inner}{mixed_units(ratio)}. Nothing was imported; correct the file, or give"
                    " --accept-outliers if it was measured so"
                )
