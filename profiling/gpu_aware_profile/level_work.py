"""What ``show`` and ``import`` do about locality levels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gpu_aware_profile.import_file import read_levels
from gpu_aware_profile.level_tables import (
    PenaltyRow,
    hidden,
    penalty_records,
    penalty_rows,
    penalty_table,
    write_penalties_csv,
)
from gpu_aware_profile.opening import written
from slurm_gpu_aware.cli.output import print_json, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.penalties import LevelTime, level_ratios
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.levels import LevelRow, check_levels, import_levels, level_times
from slurm_gpu_aware.text_file import BadRow, Table
from slurm_gpu_aware.variability.outliers import mixed_units

__all__ = ["checked_levels", "penalties_of", "show_levels", "store_levels"]

FAR_LEVEL = 50.0
"""A level that takes longer, or less time, than the innermost one by this factor is an outlier."""


def penalties_of(store: Store, config: Config, only: Sequence[str] = ()) -> list[PenaltyRow]:
    """L of the site's classes (of ``only`` these), and what was measured of them.

    Raises StoreError naming the known classes if one is not.
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
    """``show --levels``."""
    if as_json:
        print_json({"store": str(path), "penalties": penalty_records(rows)})
    elif as_csv:
        write_penalties_csv(sys.stdout, rows)
    else:
        click.echo(penalty_table(rows))


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
