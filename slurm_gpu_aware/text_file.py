"""Text from files that people and other programs wrote: size, compression, UTF-8, CSV, JSON.

The one way in for traces, histories, timings, profiles and counters. Each fault is a SourceError of
one sentence.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from slurm_gpu_aware.errors import SourceError

__all__ = [
    "MAX_BYTES",
    "csv_records",
    "csv_table",
    "decoded",
    "name_of",
    "parse_json",
    "read_data",
    "read_lines",
    "read_object",
    "read_text",
]

MAX_BYTES = 1 << 30
"""Of a file, also after decompression."""

_GZIP = b"\x1f\x8b"
_COMPRESSED = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
"""How files begin that are not decompressed here."""


def read_text(source: Path | str | BinaryIO, *, errors: str = "strict") -> str:
    """The text of a file or an open binary stream, UTF-8 with or without a byte order mark.

    A gzip file is decompressed. ``errors``: ``strict``, or ``replace`` for files in which users'
    own texts may be anything.

    Raises
    ------
    SourceError
        It cannot be read, is larger than ``MAX_BYTES``, compressed in another way, damaged, or
        (strict) not UTF-8 text.
    """
    return decoded(read_data(source), name_of(source), errors=errors)


def read_lines(source: Path | str | BinaryIO) -> list[str]:
    """:func:`read_text` by line, with their ends."""
    return list(io.StringIO(read_text(source), newline=""))


def read_data(source: Path | str | BinaryIO) -> bytes:
    """The decompressed bytes behind :func:`read_text`. Raises SourceError."""
    name = name_of(source)
    try:
        if isinstance(source, Path | str):
            with Path(source).open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        else:
            data = source.read(MAX_BYTES + 1)
    except OSError as exc:
        raise SourceError(f"{name}: cannot be read: {exc.strerror}") from None
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
    """UTF-8 text of bytes. Raises SourceError naming the line (strict)."""
    try:
        text = data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise SourceError(f"{name}: line {line}: not UTF-8 text") from None
    if errors != "strict":
        return text.replace("\0", "\ufffd")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SourceError(f"{name}: line {line}: NUL byte, so it is no text")
    return text


def csv_records(
    lines: Iterable[str], name: Path | str = "", *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """(number of its last line, cells) of each record, empty lines included.

    ``lines`` with their ends, as a text stream gives them; ``name`` stands in errors. Raises
    SourceError naming the line where it is not CSV: a cell of more than 128 KiB, and (strict) a
    quote that is left open.
    """
    reader = csv.reader(lines, strict=strict)
    where = f"{name}: " if name else ""
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as exc:
        raise SourceError(f"{where}line {reader.line_num}: not CSV: {exc}") from None


def csv_table(
    text: str, name: Path | str
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Column names, and (line, cell by column) of each row; what is short is filled with "".

    Raises SourceError as :func:`csv_records`.
    """
    records = csv_records(io.StringIO(text, newline=""), name)
    columns = next((cells for _, cells in records if cells), [])

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        for line, cells in records:
            if cells:
                pairs = zip_longest(columns, cells[: len(columns)], fillvalue="")
                yield line, dict(pairs)

    return columns, rows()


def read_object(path: Path | str, text: str | None = None) -> dict[str, Any]:
    """The JSON object in a file, or in ``text`` if it is given. Raises SourceError."""
    content = parse_json(read_text(path) if text is None else text, path)
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected a JSON object")
    return content


def parse_json(text: str, name: Path | str) -> Any:
    """The value of a JSON text. Raises SourceError, also for one that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise SourceError(f"{name}: not JSON: nested too deep") from None
    except ValueError as exc:
        raise SourceError(f"{name}: not JSON: {exc}") from None


def name_of(source: Path | str | BinaryIO) -> str:
    """The file as a person knows it."""
    name = str(source if isinstance(source, Path | str) else getattr(source, "name", "-"))
    return "stdin" if name in ("<stdin>", "-") else name
