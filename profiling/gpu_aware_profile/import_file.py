"""Formats of CSV files for ``import``: times of GPUs, times per locality level."""

from __future__ import annotations

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.penalties import LevelTime
from slurm_gpu_aware.store.levels import LevelRow
from slurm_gpu_aware.store.timings import TimingRow
from slurm_gpu_aware.text_file import BadRow, Row, Table

__all__ = ["LEVEL_COLUMNS", "TIMING_COLUMNS", "holds_levels", "read_levels", "read_timings"]

TIMING_COLUMNS = ("gpu", "node", "class", "value_ms")
LEVEL_COLUMNS = ("class", "level", "value_ms")
"""Required columns; ``model`` is optional, others are ignored."""


def holds_levels(table: Table) -> bool:
    """Whether the columns are those of times per level, not of times of single GPUs."""
    return "level" in table.columns and "gpu" not in table.columns


def read_timings(table: Table, app_class: str | None) -> tuple[list[TimingRow], list[BadRow]]:
    """Good rows and bad ones.

    ``app_class``: class of every row of a file without a column ``class``. Raises SourceError if a
    column is missing.
    """
    otherwise = " (or class,level,value_ms: times per locality level)"
    _require(table, TIMING_COLUMNS, app_class, otherwise)

    def timing(row: Row) -> TimingRow:
        value_ms = row.number("value_ms")
        name = app_class or row.text("class")
        return TimingRow(row.text("gpu"), row.text("node"), name, value_ms, row.line)

    return table.parse(timing)


def read_levels(table: Table, app_class: str | None) -> tuple[list[LevelRow], list[BadRow]]:
    """Good rows and bad ones; parameters and errors as those of :func:`read_timings`."""
    _require(table, LEVEL_COLUMNS, app_class)

    def level(row: Row) -> LevelRow:
        name, model = app_class or row.text("class"), row.cells.get("model", "")
        time = LevelTime(name, row.text("level"), row.number("value_ms"), model)
        return LevelRow(time, row.line)

    return table.parse(level)


def _require(
    table: Table, columns: tuple[str, ...], app_class: str | None, otherwise: str = ""
) -> None:
    if app_class is None:
        lacks_class = set(columns) - set(table.columns) == {"class"}
        table.require(*columns, hint="; give it with --class NAME" if lacks_class else otherwise)
        return
    if "class" in table.columns:
        raise SourceError(f"{table.name}: the file has a column class; leave --class out")
    table.require(*(column for column in columns if column != "class"), hint=otherwise)
