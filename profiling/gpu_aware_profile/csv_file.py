"""CSV with a header, as people and spreadsheets write it: strict about rows, lax about columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import csv_records

__all__ = ["header_of", "read_number", "read_rows"]

MAX_FIELD = 256

_T = TypeVar("_T")


def header_of(lines: Iterable[str]) -> list[str]:
    """Column names of a CSV; none if it is not one, of which :func:`read_rows` says more."""
    try:
        first = next(csv_records(lines), (0, []))
    except SourceError:
        return []
    return [name.strip() for name in first[1]]


def read_rows(
    lines: Iterable[str],
    columns: Sequence[str],
    make: Callable[[Mapping[str, str], int], _T],
    *,
    app_class: str | None = None,
    optional: Sequence[str] = (),
    otherwise: str = "",
) -> tuple[list[_T], list[tuple[int, str]]]:
    """Read rows; return good ones and bad ones as (line number, what is wrong).

    Parameters
    ----------
    lines : a CSV with a header that names ``columns``, in any order; others are ignored.
    make : makes a row of its cells by column and its line number; raises ValueError for a bad one.
    app_class : value of ``class`` for a file without that column.
    optional : columns that may be missing, and may be empty in a row; both are the empty text.
    otherwise : what else the file could have been, said if a column is missing.

    Raises SourceError if a column is missing or doubled, or the file is not CSV: then no row can
    be trusted.
    """
    records = csv_records(lines)
    rows: list[_T] = []
    bad: list[tuple[int, str]] = []
    given = dict.fromkeys(optional, "") | ({} if app_class is None else {"class": app_class})
    header = [name.strip() for name in next(records, (0, []))[1]]
    place = _columns(header, columns, optional, app_class, otherwise)
    for line, cells in records:
        if not any(cell.strip() for cell in cells):
            continue
        try:
            values = _values(cells, len(header), place, optional)
            rows.append(make({**given, **values}, line))
        except ValueError as exc:
            bad.append((line, str(exc)))
    return rows, bad


def read_number(values: Mapping[str, str], column: str) -> float:
    """A cell as a number. Raises ValueError."""
    try:
        return float(values[column])
    except ValueError:
        raise ValueError(f"{column} is not a number: {values[column]!r}") from None


def _columns(
    header: Sequence[str],
    columns: Sequence[str],
    optional: Sequence[str],
    app_class: str | None,
    otherwise: str,
) -> dict[str, int]:
    wanted = [c for c in columns if c != "class" or app_class is None]
    missing = [c for c in wanted if c not in header]
    if missing:
        hint = "; give it with --class NAME" if missing == ["class"] else otherwise
        raise SourceError(
            f"line 1: column {', '.join(missing)} is missing; expected {','.join(columns)}{hint}"
        )
    doubled = [c for c in (*columns, *optional) if header.count(c) > 1]
    if doubled:
        raise SourceError(f"line 1: column {doubled[0]} occurs twice")
    if app_class is not None and "class" in header:
        raise SourceError("line 1: the file has a column class; leave --class out")
    return {c: header.index(c) for c in (*wanted, *optional) if c in header}


def _values(
    cells: Sequence[str], columns: int, place: Mapping[str, int], optional: Sequence[str]
) -> dict[str, str]:
    if len(cells) != columns:
        raise ValueError(f"{len(cells)} fields, expected {columns}")
    values = {name: cells[i].strip() for name, i in place.items()}
    for name, value in values.items():
        if not value and name not in optional:
            raise ValueError(f"{name} is empty")
        if len(value) > MAX_FIELD:
            raise ValueError(f"{name} is longer than {MAX_FIELD} characters")
    return values
