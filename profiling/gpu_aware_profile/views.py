"""Views of records: the columns of a table, described once for the terminal and for a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from slurm_gpu_aware.cli.output import table
from slurm_gpu_aware.time_text import duration

Record = Mapping[str, Any]
_COLUMN = re.compile(r"(>?)([^=:]+)(?:=(\w+))?(?::(.+))?\Z")


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

    def cells(self, rows: Iterable[Record], ago: Callable[[float], str]) -> list[list[object]]:
        """The cells of each record. ``ago``: text of the age of a Unix time."""
        return [[_cell(row[name], form, ago) for name, form in self._values] for row in rows]

    def text(self, rows: Iterable[Record], now: float = 0.0) -> str:
        """The table for the terminal. ``now``: Unix time."""
        cells = self.cells(rows, lambda at: duration(now - at))
        return table(self.headers, cells, right=self._right)

    def show(self, rows: list[Record]) -> None:
        """Print an empty line and the table, unless there is no record."""
        if rows:
            click.echo(f"\n{self.text(rows)}")


def _cell(value: Any, form: str, ago: Callable[[float], str]) -> object:
    if value is None or not form:
        return value
    return ago(value) if form == "ago" else format(value, form)
