"""Slurm's grammar of slurm.conf and gres.conf: lines to records, records to pairs, includes.

As ``src/common/parse_config.c`` of Slurm reads them. Neither regular expressions nor paths: the
hooks of compute nodes import it.
"""

from __future__ import annotations

import os

from slurm_gpu_aware.errors import FileFault, SourceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

Pairs = list[tuple[str, str]]  # Key as the site spells it, value with its quotes.
MAX_BYTES = 1 << 24  # Size limit of a file.
_BLANKS = " \t\n\r\f\v"
_OPERATORS = ("+", "-", "*", "/")  # Slurm takes them all for a plain "="
_MOST_FILES, _DEEPEST = 4096, 16


def records_of(text: str) -> Iterator[tuple[list[str], str]]:
    """(lines, the record that they are for Slurm) of a file's text.

    A record goes on after a backslash at the end of a line, without a blank; it has no comment.
    """
    lines = iter(text.split("\n"))
    for line in lines:
        own, record = [line], ""
        while True:
            part, goes_on = _code(own[-1])
            record += part
            following = next(lines, None) if goes_on else None
            if following is None:
                break
            own.append(following)
        yield own, _unescaped(record)


def _code(line: str) -> tuple[str, bool]:
    """(the line without comment and final backslash, whether the record goes on)."""
    parts = line.split("#")
    whole = (at for at, part in enumerate(parts, 1) if not _is_escape(part))
    code = "#".join(parts[: next(whole, len(parts))])
    bare = code.rstrip(_BLANKS)
    return (bare[:-1], True) if _is_escape(bare) else (code, False)


def _is_escape(text: str) -> bool:
    """Whether a text ends in a backslash that is not escaped itself."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    pieces = iter(text.split("\\"))
    out = [next(pieces)]
    out += (piece or "\\" + next(pieces, "") for piece in pieces)
    return "".join(out)


def pairs_of(record: str) -> tuple[Pairs, str]:
    """(keys and values, rest that Slurm does not read)."""
    pairs: Pairs = []
    rest = record
    while "=" in rest:
        before, _, after = rest.partition("=")
        key = before[:-1] if before.endswith(_OPERATORS) else before
        key = key.strip(_BLANKS)
        plain = key.replace("_", "").replace(".", "")
        value = _value(after.lstrip(_BLANKS))
        if not value or not key or not (f"{plain}0".isascii() and f"{plain}0".isalnum()):
            break
        pairs.append((key, value))
        rest = after.lstrip(_BLANKS)[len(value) :]
    return pairs, rest.strip(_BLANKS)


def _value(text: str) -> str:
    """The value at the start of a text: up to a blank, or in quotes."""
    if text.startswith('"'):
        end = text.find('"', 1) + 1
        if end and text[end : end + 1] in ("", *_BLANKS):
            return text[:end]
    return text[: _word_end(text)]


def _word_end(text: str) -> int:
    return min((at for blank in _BLANKS if (at := text.find(blank)) >= 0), default=len(text))


def unquoted(value: str) -> str:
    """A value without its quotes."""
    return value[1:-1] if value == f'"{value[1:-1]}"' and '"' not in value[1:-1] else value


def quoted_value(value: str) -> str:
    """A value as `pairs_of` gives it. Raises SourceError if Slurm's grammar has no such value."""
    blank = not value or _word_end(value) < len(value)
    if '"' in value or "\n" in value or "\r" in value:
        raise SourceError(f"slurm.conf cannot hold the value {value[:80]!r}: it has a quote")
    return f'"{value}"' if blank else value


def render_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """The line of keys and values; the inverse of `pairs_of`."""
    text = " ".join(f"{key}={value}" for key, value in pairs)
    return text.replace("\\", "\\\\").replace("#", "\\#")


def fields_of(record: str) -> dict[str, str]:
    """Keys of a record in lower case -> values without quotes; of a repeated one the last."""
    return {key.lower(): unquoted(value) for key, value in pairs_of(record)[0]}


def included(record: str) -> tuple[str, str] | None:
    """(file as the record names it, rest of the line) of an ``Include``; None: another record."""
    word, name = record[:7].lower(), record[7:].lstrip(_BLANKS)
    if word != "include" or record[7:8] not in _BLANKS or not name:
        return None
    end = _word_end(name)
    return name[:end], name[end:].strip(_BLANKS)


def in_order(
    file: str, records: Callable[[str], Iterable[tuple[str, T]]]
) -> Iterator[tuple[str, str, T]]:
    """(file, record, tag) of all records in the order in which Slurm reads them.

    ``records(file)``: (record, tag) of one file. Includes are followed as often as they occur: from
    the folder of the first file, with ``%c`` for the ClusterName read so far. Slurm skips one with
    a ``*``. Raises SourceError for an endless inclusion.
    """
    folder, cluster, files = os.path.dirname(file), "", 1
    open_files = [(file, iter(records(file)))]
    while open_files:
        name, rest = open_files[-1]
        item = next(rest, None)
        if item is None:
            open_files.pop()
            continue
        record, tag = item
        yield name, record, tag
        include = included(record)
        if include is None:
            if record.lstrip(_BLANKS)[:11].lower() == "clustername":
                cluster = fields_of(record).get("clustername", cluster)
        elif "*" not in include[0]:
            if "%c" in include[0] and not cluster:
                raise SourceError(f"{name}: Include {include[0]}: no ClusterName stands before it")
            path = os.path.join(folder, include[0].replace("%c", cluster.lower()))
            files += 1
            if len(open_files) == _DEEPEST or files > _MOST_FILES:
                raise SourceError(f"{name}: Include {include[0]}: the files include each other")
            open_files.append((path, iter(records(path))))


def read_text(file: str) -> str:
    """The text of a file; that of a folder is empty, as for Slurm. Raises SourceError."""
    with FileFault(file):
        if os.path.isdir(file):
            return ""
        if not os.path.isfile(file):
            os.stat(file)
            raise SourceError(f"{file}: cannot be read: it is no file")
        with open(file, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES or b"\0" in data:
        why = "it has a NUL byte" if b"\0" in data else f"it has more than {MAX_BYTES >> 20} MiB"
        raise SourceError(f"{file}: cannot be read: {why}")
    return data.decode("utf-8", "surrogateescape")
