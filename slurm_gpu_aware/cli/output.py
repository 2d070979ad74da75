"""Output: tables for users, JSON for programs. stdout has data, stderr has messages."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

__all__ = [
    "clean",
    "json_option",
    "pairs",
    "paragraph",
    "print_json",
    "say",
    "table",
    "width",
]

_MAX_WIDTH = 100
_MIN_WIDTH = 60

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json`` to a command; the parameter is called ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(
        command
    )


def say(text: str) -> None:
    """Print a message on stderr."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON on stdout."""
    click.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def width() -> int:
    """Line width: that of the terminal, between 60 and 100."""
    return max(_MIN_WIDTH, min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns))


def clean(value: object) -> str:
    """Text of a cell without control characters, because users' input may contain them."""
    text = "-" if value is None or value == "" else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Iterable[str] = (),
    columns: int | None = None,
) -> str:
    """Lay rows out in columns; the last column wraps so that no line is longer than ``columns``.

    Parameters
    ----------
    headers : one per column.
    rows : cells; None and "" are shown as ``-``.
    right : headers of the columns that are aligned to the right.
    columns : line width; None: the terminal's.
    """
    cells = [[clean(c) for c in row] for row in rows]
    aligned = [h in set(right) for h in headers]
    widths = [max([len(h), *(len(r[i]) for r in cells)]) for i, h in enumerate(headers)]
    total = width() if columns is None else columns
    room = max(16, total - sum(widths[:-1]) - 2 * (len(headers) - 1))
    widths[-1] = min(widths[-1], room)

    def line(row: Sequence[str]) -> str:
        parts = [
            c.rjust(w) if a else c.ljust(w) for c, w, a in zip(row, widths, aligned, strict=True)
        ]
        return "  ".join(parts).rstrip()

    def lines(row: Sequence[str]) -> list[str]:
        first, *more = textwrap.wrap(row[-1], widths[-1], break_on_hyphens=False) or [""]
        return [line([*row[:-1], first]), *(line([*[""] * (len(row) - 1), m]) for m in more)]

    out = [*lines(headers), line(["-" * w for w in widths])]
    return "\n".join([*out, *(text for row in cells for text in lines(row))])


def pairs(entries: Mapping[str, object] | Sequence[tuple[str, object]]) -> str:
    """Lay out ``name  value`` lines, values wrapped and aligned."""
    items = list(entries.items() if isinstance(entries, Mapping) else entries)
    left = max((len(name) for name, _ in items), default=0) + 2
    lines = []
    for name, value in items:
        wrapped = textwrap.wrap(clean(value), max(20, width() - left), break_on_hyphens=False)
        for i, piece in enumerate(wrapped or [""]):
            lines.append((name if i == 0 else "").ljust(left) + piece)
    return "\n".join(lines)


def paragraph(text: str, indent: str = "") -> str:
    """Wrap a sentence to the width."""
    return textwrap.fill(
        clean(text),
        width(),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,  # keeps paths whole
    )
