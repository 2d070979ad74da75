"""Small CSV files that a person writes: measured bandwidths, utilisations, class centres."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from slurm_gpu_aware.bounds import MAX_GBPS, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import csv_records

__all__ = ["Sample", "count", "percent", "positive", "read_samples", "slots"]

_MOST_LINKS = 10_000

T = TypeVar("T")


class Sample(NamedTuple):
    """A row: its line, and the text of each column that was asked for."""

    line: int
    texts: tuple[str, ...]


def read_samples(lines: Iterable[str], columns: Sequence[str]) -> list[Sample]:
    """Read the named columns; others are ignored, and so are empty lines and ``#`` comments.

    Raises SourceError if a column or every row is missing, or a row is short.
    """
    spoken = (line if line.strip() and not line.startswith("#") else "\n" for line in lines)
    header: list[str] | None = None
    samples: list[Sample] = []
    for number, cells in csv_records(spoken):
        row = [cell.strip() for cell in cells]
        if not row:
            continue
        if header is None:
            header = row
            missing = [name for name in columns if name not in header]
            if missing:
                raise SourceError(
                    f"line {number}: no column {missing[0]!r}; expected {','.join(columns)}"
                )
        elif len(row) != len(header):
            raise SourceError(f"line {number}: {len(row)} values, the header has {len(header)}")
        else:
            samples.append(Sample(number, tuple(row[header.index(name)] for name in columns)))
    if not samples:
        raise SourceError(f"no row; expected a CSV with the columns {','.join(columns)}")
    return samples


def percent(text: str, line: int) -> float:
    """A utilisation, 0..100."""
    return _number(text, line, float, lambda v: 0.0 <= v <= 100.0, "a percentage, 0..100")


def positive(text: str, line: int) -> float:
    """A bandwidth. Units: GB/s."""
    return _number(text, line, float, lambda v: 0.0 < v <= MAX_GBPS, "a bandwidth above 0, in GB/s")


def count(text: str, line: int) -> int:
    """A number of links, 0 or more."""
    return _number(
        text, line, int, lambda v: 0 <= v <= _MOST_LINKS, "a whole number of links, 0 or more"
    )


def slots(text: str, line: int, most: int) -> tuple[int, ...]:
    """GPUs of a machine of ``most``, separated by spaces or commas: two or more, each once."""
    what = f"two or more different GPUs below {most}, such as 0 2 3"
    try:
        chosen = sorted(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        chosen = []
    if len(chosen) < 2 or len(set(chosen)) < len(chosen) or chosen[0] < 0 or chosen[-1] >= most:
        raise SourceError(f"line {line}: {quoted(text)} is not {what}")
    return tuple(chosen)


def _number(
    text: str, line: int, kind: Callable[[str], T], fits: Callable[[T], bool], what: str
) -> T:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or (isinstance(value, float) and not math.isfinite(value)) or not fits(value):
        raise SourceError(f"line {line}: {quoted(text)} is not {what}")
    return value
