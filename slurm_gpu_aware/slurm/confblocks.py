"""Blocks in slurm.conf and gres.conf that replace lines of the site and keep them as comments.

A changed record becomes a block: the site's lines, each behind ``#|``, then the lines that hold
instead. Without the block the file is what it was, byte for byte. The end of a block has a checksum
of our lines, so that a change by hand is never overwritten.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware.errors import SourceError

__all__ = ["ConfFiles", "Entry", "Pairs", "block_alone", "entries", "pairs_of", "render_pairs"]

_BEGIN = "# BEGIN gpu-aware nodes: instead of the lines behind '#|', by 'gpu-aware setup --roll'"
_BEGIN_START = "# BEGIN gpu-aware nodes"
_END_START = "# END gpu-aware nodes"
_ORIGIN = "#|"
_PAIR = re.compile(r'([A-Za-z][A-Za-z0-9_]*)\s*(\+?=)\s*("[^"]*"|\S*)')
_MAX_DEPTH = 8

Pairs = list[tuple[str, str]]
"""Key as the site spells it, value with its quotes."""


@dataclass(frozen=True)
class Entry:
    """One record of a file: its lines, or a block that replaces them."""

    origin: tuple[str, ...]
    """The site's lines with continuations and comments; empty: the block replaces no line."""
    ours: tuple[str, ...] | None = None
    """Lines that hold instead; None: the site's lines hold."""

    @property
    def text(self) -> str:
        """The site's record in one line without comment."""
        return " ".join(_bare(line) for line in self.origin).strip()

    def effective(self) -> tuple[str, ...]:
        """The lines that Slurm reads, without comments."""
        return (self.text,) if self.ours is None else tuple(map(_bare, self.ours))

    def lines(self) -> list[str]:
        """The lines in the file."""
        if self.ours is None:
            return list(self.origin)
        origin = [f"{_ORIGIN} {line}" for line in self.origin]
        return [_BEGIN, *origin, *self.ours, f"{_END_START} {_checksum(self.ours)}"]


def entries(text: str, file: Path | str, *, checked: bool = True) -> list[Entry]:
    """Split a file into records. Raises SourceError for a block that was changed by hand.

    ``checked`` False: such a block is taken as it is.
    """
    records: list[Entry] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith(_BEGIN_START):
            records.append(_block(lines, file, checked))
            continue
        record = [line]
        while _continues(record[-1]):
            following = next(lines, None)
            if following is None:
                break
            record.append(following)
        records.append(Entry(tuple(record)))
    return records


def _block(lines: Iterator[str], file: Path | str, checked: bool) -> Entry:
    origin: list[str] = []
    ours: list[str] = []
    for line in lines:
        if line.startswith(_END_START):
            if checked and line.removeprefix(_END_START).strip() != _checksum(ours):
                raise SourceError(
                    f"{file}: lines between '{_BEGIN_START}' and '{_END_START}' were changed by"
                    f" hand, near {ours[0] if ours else line!r}; undo that, or change the site's"
                    f" lines behind '{_ORIGIN}' instead and run 'gpu-aware setup --roll' again"
                )
            return Entry(tuple(origin), tuple(ours))
        if line.startswith(_ORIGIN):
            origin.append(line.removeprefix(_ORIGIN).removeprefix(" "))
        else:
            ours.append(line)
    raise SourceError(f"{file}: '{_BEGIN_START}' without '{_END_START}'")


def _continues(line: str) -> bool:
    return line.split("#", 1)[0].rstrip().endswith("\\")


def _bare(line: str) -> str:
    text = line.split("#", 1)[0].rstrip()
    return text[:-1].strip() if text.endswith("\\") else text.strip()


def _checksum(lines: Sequence[str]) -> str:
    return f"{zlib.crc32(chr(10).join(lines).encode()):08x}"


def pairs_of(line: str) -> Pairs:
    """Keys and values of a record."""
    return [(key, value) for key, _, value in _PAIR.findall(line)]


def render_pairs(pairs: Pairs) -> str:
    """The record of keys and values; the inverse of `pairs_of`."""
    return " ".join(f"{key}={value}" for key, value in pairs)


class ConfFiles:
    """A configuration file with its includes. Raises SourceError if one cannot be read."""

    def __init__(self, path: Path, *, missing_ok: bool = False, checked: bool = True) -> None:
        self.path = path
        self._checked = checked
        self.texts: dict[Path, str] = {}
        if path.exists() or not missing_ok:
            self._read(path, 0)
        else:
            self.texts[path] = ""

    def _read(self, path: Path, depth: int) -> None:
        try:
            self.texts[path] = path.read_bytes().decode("utf-8", "surrogateescape")
        except OSError as exc:
            raise SourceError(f"{path}: cannot be read: {exc.strerror}") from None
        for entry in entries(self.texts[path], path, checked=self._checked):
            included = _included(entry, self.path.parent)
            if included is not None and included not in self.texts and depth < _MAX_DEPTH:
                self._read(included, depth + 1)

    def records(self) -> Iterator[Entry]:
        """All records in Slurm's order."""
        for _, entry in self._walk(self.path, set()):
            yield entry

    def _walk(self, path: Path, seen: set[Path]) -> Iterator[tuple[Path, Entry]]:
        seen.add(path)
        for entry in entries(self.texts[path], path, checked=self._checked):
            included = _included(entry, self.path.parent)
            if included in self.texts and included not in seen:
                yield from self._walk(included, seen)
            yield path, entry

    def rewrite(self, ours: Callable[[Entry], Sequence[str] | None]) -> dict[Path, str]:
        """Text of each file with ``ours(record)`` for the site's lines (None: these hold).

        Records come in Slurm's order. Blocks that replace no line are left out.
        """
        out: dict[Path, list[str]] = {path: [] for path in self.texts}
        for path, entry in self._walk(self.path, set()):
            if entry.ours is not None and not entry.origin:
                continue
            lines = ours(entry)
            changed = Entry(entry.origin, None if lines is None else tuple(lines))
            out[path].extend(changed.lines())
        return {path: "\n".join(lines) for path, lines in out.items()}


def _included(entry: Entry, folder: Path) -> Path | None:
    words = entry.text.split(None, 1)
    if len(words) != 2 or words[0].lower() != "include":
        return None
    return Path(words[1]) if words[1].startswith("/") else folder / words[1]


def block_alone(lines: Sequence[str]) -> str:
    """Text of a block that replaces no line."""
    return "".join(f"{line}\n" for line in Entry((), tuple(lines)).lines())
