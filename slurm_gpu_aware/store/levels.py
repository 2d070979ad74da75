"""Times per locality level: imported ones in, all out.

An import replaces all stored times of a class, so that times before and after a change of the site
or of the program are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_gpu_aware.bounds import check_time_ms
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.penalties import INSIDE_NODE, LEVELS, LevelTime, reference_of
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.report import check_name
from slurm_gpu_aware.text_file import BadRow

__all__ = ["LevelRow", "check_levels", "import_levels", "level_times"]


class LevelRow(NamedTuple):
    """One time to import."""

    time: LevelTime
    line: int = 0
    """Line of the file; 0: unknown."""


def check_levels(
    rows: Iterable[LevelRow], classes: Sequence[str] = ()
) -> tuple[list[LevelRow], list[BadRow]]:
    """Split rows into good and bad ones.

    ``classes``: those of the site; empty: any well-formed name. If the good rows of a class cannot
    be compared with each other, all of them are bad; the first one is reported.
    """
    by_class: dict[str, list[LevelRow]] = {}
    bad: list[BadRow] = []
    for row in rows:
        try:
            _check(row.time, classes)
        except ValueError as exc:
            bad.append(BadRow(row.line, str(exc)))
        else:
            by_class.setdefault(row.time.app_class, []).append(row)
    good: list[LevelRow] = []
    for app_class, own in by_class.items():
        try:
            _check_class(app_class, [row.time for row in own])
        except ValueError as exc:
            bad.append(BadRow(own[0].line, str(exc)))
        else:
            good += own
    return good, bad


def import_levels(
    store: Store, rows: Iterable[LevelRow], *, taken_at: float, classes: Sequence[str] = ()
) -> int:
    """Replace the times of the classes of ``rows``, all or none; return the number of rows.

    ``taken_at``: Unix s. Raises StoreError that names the first bad row, with nothing imported.
    """
    good, bad = check_levels(rows, classes)
    if bad:
        line, reason, _ = bad[0]
        raise StoreError(f"line {line}: {reason}" if line else reason)
    runs: dict[tuple[str, str, str], int] = {}
    values = []
    for time, _ in good:
        key = (time.app_class, time.model, time.level)
        runs[key] = runs.get(key, -1) + 1
        values.append((*key, runs[key], float(time.value_ms), float(taken_at)))
    with store.write():
        names = sorted({time.app_class for time, _ in good})
        store.executemany("DELETE FROM level_times WHERE class = ?", [(name,) for name in names])
        store.executemany(
            "INSERT INTO level_times (class, model, level, run, value_ms, taken_at_unix)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            values,
        )
    return len(values)


def level_times(store: Store) -> list[LevelTime]:
    """All times, by class and model, tightest level first, in the order of the import."""
    rows = store.query(
        "SELECT class, model, level, value_ms FROM level_times ORDER BY class, model, run"
    )
    times = [LevelTime(r["class"], r["level"], r["value_ms"], r["model"]) for r in rows]
    known = [time for time in times if time.level in LEVELS]
    return sorted(known, key=lambda t: (t.app_class, t.model, LEVELS.index(t.level)))


def _check(time: LevelTime, classes: Sequence[str]) -> None:
    check_name("class", time.app_class)
    if classes and time.app_class not in classes:
        raise ValueError(f"class {time.app_class!r} is not one of {', '.join(classes)}")
    if time.level not in LEVELS:
        raise ValueError(f"level {time.level!r} is not one of {', '.join(LEVELS)}")
    if time.model:
        check_name("model", time.model)
    check_time_ms(time.value_ms)


def _check_class(app_class: str, times: Sequence[LevelTime]) -> None:
    """Raise ValueError unless all models have one reference level inside a node and another one."""
    of_model: dict[str, set[str]] = {}
    for time in times:
        of_model.setdefault(time.model, set()).add(time.level)
    inner = reference_of(time.level for time in times)
    for model, levels in of_model.items():
        what = f"class {app_class}" + (f" on {model}" if model else "")
        there = ", ".join(name for name in LEVELS if name in levels)
        if reference_of(levels) is None:
            raise ValueError(
                f"{what} was timed at {there} only; time it inside a node, too "
                f"({', '.join(INSIDE_NODE)}), on the same number of GPUs: it is the reference"
            )
        if reference_of(levels) != inner:
            raise ValueError(
                f"{what} was timed at {there}, and at {inner} on another model only; the innermost "
                "level must be the same for all models of a class"
            )
        if len(levels) == 1:
            raise ValueError(
                f"{what} was timed at {there} only; time it at a looser level, too: "
                f"{', '.join(LEVELS[LEVELS.index(there) + 1 :])}"
            )
