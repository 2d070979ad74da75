"""Readers of text, CSV tables and JSON from people and other programs.

Each fault is a SourceError of one sentence; a bad row of a table is a `BadRow` with its line.
"""

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import FileFault, SourceError

MAX_BYTES = 1 << 30  # Size limit of a file, before and after decompression.

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
_COMPRESSED = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}
"""First bytes of formats that are not decompressed here."""


def read_text(source: Path | str | BinaryIO, *, errors: str = "strict") -> str:
    """The text of a file or a binary stream: UTF-8, with or without a byte order mark, or gzip.

    ``errors``: ``strict``, or ``replace`` for files that contain texts of users in any encoding.
    Raises SourceError if it cannot be read, is larger than ``MAX_BYTES``, compressed in another
    way, damaged, or (strict) not UTF-8 text.
    """
    return decoded(read_data(source), name_of(source), errors=errors)


def read_data(source: Path | str | BinaryIO) -> bytes:
    """The decompressed bytes behind :func:`read_text`. Raises SourceError."""
    name = name_of(source)
    with FileFault(name):
        if isinstance(source, Path | str):
            with Path("/dev/stdin" if str(source) == "-" else source).open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        else:
            data = source.read(MAX_BYTES + 1)
    if data.startswith(_GZIP):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                data = stream.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as exc:
            raise SourceError(f"{name}: damaged gzip file: {exc}") from None
    for start, tool in _COMPRESSED.items():
        if data.startswith(start):
            raise SourceError(f"{name}: compressed with {tool}; decompress it, or use gzip")
    if len(data) > MAX_BYTES:
        raise SourceError(f"{name}: larger than {MAX_BYTES >> 20} MiB; give it in parts")
    return data


def decoded(data: bytes, name: Path | str, *, errors: str = "strict") -> str:
    """UTF-8 text of bytes. Raises SourceError that names the line (strict)."""
    try:
        text = data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise SourceError(f"{name}: line {line}: not UTF-8 text") from None
    if errors != "strict":
        return text.replace("\0", "\ufffd")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SourceError(f"{name}: line {line}: NUL byte: not a text file")
    return text


def csv_records(
    lines: Iterable[str], name: str = "", *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """(number of its last line, cells) of each record, empty lines included.

    ``lines`` keep their ends; ``name`` is for errors. Raises SourceError that names the line if a
    cell is larger than 128 KiB or (strict) a quote is not closed.
    """
    reader = csv.reader(lines, strict=strict)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as exc:
        where = f"{name}: line" if name else "line"
        raise SourceError(f"{where} {reader.line_num}: not CSV: {exc}") from None


class BadRow(NamedTuple):
    """A row that cannot be used."""

    line: int
    reason: str
    unit: str = "line"  # What ``line`` counts: ``line``, ``record`` of a list, ``result``, ...


@dataclass(frozen=True)
class Row:
    """One row of a table. The methods raise ValueError that names column and cell."""

    line: int
    cells: Mapping[str, str]  # Column -> cell without surrounding blanks.

    def text(self, column: str) -> str:
        """A cell that is not empty."""
        if not self.cells[column]:
            raise ValueError(f"{column} is empty")
        return self.cells[column]

    def number(self, column: str, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number within bounds."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{column} is {quoted(text)}: not a number") from None
        if not math.isfinite(value):
            raise ValueError(f"{column} is {quoted(text)}: not a finite number")
        if not least <= value <= most:
            raise ValueError(f"{column} is {value:g}: expected {least:g} to {most:g}")
        return value

    def count(self, column: str, least: float = -math.inf, most: float = math.inf) -> int:
        """A whole number within bounds."""
        value = self.number(column, least, most)
        if not value.is_integer():
            raise ValueError(f"{column} is {quoted(self.cells[column])}: not a whole number")
        return int(value)


@dataclass(frozen=True)
class Table:
    """A table with a header: CSV, from :func:`read_table`, or made of another file."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    bad_rows: tuple[BadRow, ...]
    """Rows that cannot be read; of CSV: with fewer or more cells than columns."""
    unit: str = "line"  # What ``Row.line`` counts.

    def require(self, *columns: str, hint: str = "") -> None:
        """Raise SourceError unless each column occurs once; ``hint`` ends the message."""
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise SourceError(
                f"{self.name}: no column {', '.join(map(repr, missing))};"
                f" expected {','.join(columns)}{hint}"
            )
        for column in columns:
            if self.columns.count(column) > 1:
                raise SourceError(f"{self.name}: column {column!r} occurs twice")

    def parse(self, make: Callable[[Row], T]) -> tuple[list[T], list[BadRow]]:
        """Results of ``make`` for the rows, and the rows for which it raises ValueError."""
        good: list[T] = []
        bad = list(self.bad_rows)
        for row in self.rows:
            try:
                good.append(make(row))
            except ValueError as exc:
                bad.append(BadRow(row.line, str(exc), self.unit))
        return good, sorted(bad)

    def parse_all(self, make: Callable[[Row], T]) -> list[T]:
        """Results of ``make`` for the rows. Raises SourceError for a bad row or without rows."""
        good, bad = self.parse(make)
        if bad:
            raise SourceError(f"{self.name}: {bad[0].unit} {bad[0].line}: {bad[0].reason}")
        if not good:
            raise SourceError(f"{self.name}: no row")
        return good


def read_table(source: Path | str | BinaryIO, text: str | None = None) -> Table:
    """Read a CSV file, or ``text`` if it is given (then ``source`` is only its name).

    The first row names the columns. Empty rows and rows that begin with ``#`` are skipped. Raises
    SourceError if the file cannot be read or is not CSV.
    """
    name = name_of(source)
    lines = io.StringIO(read_text(source) if text is None else text, newline="")
    columns: tuple[str, ...] = ()
    rows: list[Row] = []
    bad: list[BadRow] = []
    for line, record in csv_records(lines, name):
        cells = [cell.strip() for cell in record]
        if not any(cells) or cells[0].startswith("#"):
            continue
        if not columns:
            columns = tuple(cells)
        elif len(cells) != len(columns):
            bad.append(BadRow(line, f"{len(cells)} cells, expected {len(columns)}"))
        else:
            rows.append(Row(line, dict(zip(columns, cells, strict=True))))
    return Table(name, columns, tuple(rows), tuple(bad))


def read_object(path: Path | str) -> dict[str, Any]:
    """The JSON object in a file. Raises SourceError."""
    content = parse_json(read_text(path), path)
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected a JSON object")
    return content


def parse_json(text: str, name: Path | str) -> Any:
    """The value of a JSON text. Raises SourceError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise SourceError(f"{name}: not JSON: nested too deep") from None
    except ValueError as exc:
        raise SourceError(f"{name}: not JSON: {exc}") from None


def name_of(source: Path | str | BinaryIO) -> str:
    """Name of the file for messages."""
    name = str(source if isinstance(source, Path | str) else getattr(source, "name", "-"))
    return "stdin" if name in ("<stdin>", "-") else name
