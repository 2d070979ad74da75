"""Output: tables and pictures for users, JSON for programs. stdout has data, stderr messages."""

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from slurm_gpu_aware.bounds import printable
from slurm_gpu_aware.errors import FileFault, SourceError, not_installed
from slurm_gpu_aware.page.blocks import Sentences, Table, Words

_MAX_WIDTH = 100
_MIN_WIDTH = 60

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def say(text: str) -> None:
    """Print a message on stderr."""
    click.echo(visible(text), err=True)


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON on stdout."""
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    """``value`` as indented JSON; characters that a terminal does not print are escaped."""
    text = json.dumps(value, indent=2, default=str, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def width() -> int:
    """Line width: that of the terminal, between 60 and 100."""
    return max(_MIN_WIDTH, min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns))


def clean(value: object) -> str:
    """Text of a cell without control characters, because users' input may contain them."""
    return printable("-" if value is None or value == "" else str(value))


def visible(text: str) -> str:
    """Lines without control characters, because they may quote what other hosts say."""
    return "\n".join(clean(line) if line else "" for line in text.split("\n"))


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> str:
    """Lay rows out in columns; the last one wraps to the terminal's width.

    ``rows``: cells; None and "" are shown as ``-``. ``right``: headers of right-aligned columns.
    """
    cells = [headers, *([clean(c) for c in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[-1] = min(widths[-1], _room(widths[:-1]))
    cells.insert(1, ["-" * w for w in widths])
    return _columns(cells, widths, [header in set(right) for header in headers])


def pairs(entries: Iterable[tuple[str, object]]) -> str:
    """Lay out ``name  value`` lines, values wrapped and aligned."""
    cells = [(name, clean(value)) for name, value in entries]
    left = max((len(name) for name, _ in cells), default=0)
    return _columns(cells, [left, _room([left])], [False, False])


def _room(widths: Sequence[int]) -> int:
    """Width of a last column beside others, with two blanks between columns."""
    return max(16, width() - sum(widths) - 2 * len(widths))


def _columns(rows: Iterable[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Cells in columns, some aligned to the right; the last one wraps."""
    lines = []
    for row in rows:
        pieces = textwrap.wrap(row[-1], widths[-1], break_on_hyphens=False) or [""]
        for i, piece in enumerate(pieces):
            cells = [*(row[:-1] if i == 0 else [""] * (len(row) - 1)), piece]
            padded = (
                c.rjust(w) if r else c.ljust(w)
                for c, w, r in zip(cells, widths, right, strict=True)
            )
            lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def block_text(block: Words) -> str:
    """A block of `page.blocks` for the terminal."""
    if isinstance(block, Sentences):
        text = "\n".join(map(paragraph, block.lines))
    elif isinstance(block, Table):
        text = table(block.headers, block.rows, right=block.right)
        text += f"\n{block.more}" if block.more else ""
    else:
        text = pairs(block.entries)
    return f"{block.title}\n{text}" if block.title else text


def blocks_text(blocks: Iterable[Words]) -> str:
    """Blocks with an empty line between them."""
    return "\n\n".join(map(block_text, blocks))


def place_text(placed: Mapping[str, Any]) -> str:
    """``n1: 0,1; n2: 0,1``; only the node names if Slurm chooses the GPUs (not ``exact``)."""
    if not placed["exact"]:
        return ", ".join(placed["nodes"]) or "by Slurm"
    chosen = zip(placed["nodes"], placed["slots"], strict=True)
    return "; ".join(f"{node}: {','.join(map(str, slots))}" for node, slots in chosen)


def some(names: Sequence[str], most: int) -> str:
    """The first names of a list, with dots if there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def paragraph(text: str) -> str:
    """Wrap a sentence to the width; paths stay whole."""
    return textwrap.fill(clean(text), width(), break_on_hyphens=False, break_long_words=False)


@contextmanager
def drawn_into(path: Path, size: tuple[float, float], dpi: int, **details: Any) -> Iterator[Any]:
    """A figure of this size (inches) that is written to ``path``, whose suffix names the format.

    ``details``: of ``savefig``. Raises SourceError if matplotlib is missing or the file cannot be
    written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SourceError(not_installed("matplotlib", "plots")) from None
    figure = Figure(figsize=size, layout="constrained")
    yield figure
    try:
        with FileFault(path, "written"):
            figure.savefig(path, dpi=dpi, **details)
    except ValueError as exc:  # the format
        raise SourceError(f"{path}: the picture cannot be written: {exc}") from None
