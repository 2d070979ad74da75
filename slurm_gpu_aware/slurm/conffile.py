"""Reader and editor of slurm.conf and gres.conf that keeps the site's lines, order and spelling.

Settings are set in their place, or in one block of ours at the end of the file. A changed record
becomes a block of its own: the site's lines, each behind ``#|``, then the lines that hold instead.
Without the block the file is what it was, byte for byte. The end of such a block has a checksum of
our lines, so that a change by hand is never overwritten.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.errors import SourceError

BEGIN = "# BEGIN gpu-aware (written by gpu-aware setup; edit above or below)"
END = "# END gpu-aware"
BEGIN_RECORD = "# BEGIN gpu-aware nodes"
"""Start of the lines of moved nodes, in slurm.conf and gres.conf."""
_BEGIN_LINE = f"{BEGIN_RECORD}: instead of the lines behind '#|', by 'gpu-aware setup --roll'"
_END_RECORD = "# END gpu-aware nodes"
_ORIGIN = "#|"
_PAIR = re.compile(r'([A-Za-z][A-Za-z0-9_]*)\s*(\+?=)\s*("[^"]*"|\S*)')
_SETTING = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*=\s*(.*?)\s*\Z")
_RECORDS = frozenset({"nodename", "partitionname", "downnodes", "nodeset", "frontendname"})
_MAX_DEPTH = 8

Pairs = list[tuple[str, str]]
"""Key as the site spells it, value with its quotes."""


def pairs_of(line: str) -> Pairs:
    """Keys and values of a record."""
    return [(key, value) for key, _, value in _PAIR.findall(line)]


def render_pairs(pairs: Pairs) -> str:
    """The record of keys and values; the inverse of `pairs_of`."""
    return " ".join(f"{key}={value}" for key, value in pairs)


def fields_of(line: str) -> dict[str, str]:
    """Keys of a record in lower case -> values without quotes."""
    return {key.lower(): value.strip('"') for key, value in pairs_of(line)}


# -- records ---------------------------------------------------------------------------------------


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
        return [_BEGIN_LINE, *origin, *self.ours, f"{_END_RECORD} {_checksum(self.ours)}"]


def block_alone(lines: Sequence[str]) -> str:
    """Text of a block that replaces no line."""
    return "".join(f"{line}\n" for line in Entry((), tuple(lines)).lines())


class ConfFiles:
    """A configuration file with its includes.

    Raises SourceError if one cannot be read or (``checked``) has a block that was changed by hand.
    """

    def __init__(self, path: Path, *, missing_ok: bool = False, checked: bool = True) -> None:
        self.path = path
        self._checked = checked
        self.texts: dict[Path, str] = {}
        self._entries: list[tuple[Path, Entry]] = []
        """In Slurm's order, each with its file."""
        if missing_ok and not path.exists():
            self.texts[path] = ""
        else:
            self._read(path, 0)

    def _read(self, path: Path, depth: int) -> None:
        try:
            text = path.read_bytes().decode("utf-8", "surrogateescape")
        except OSError as exc:
            raise SourceError(f"{path}: cannot be read: {exc.strerror}") from None
        self.texts[path] = text
        for entry in _split(text, path, self._checked):
            words = entry.text.split(None, 1)
            if len(words) == 2 and words[0].lower() == "include":
                included = self.path.parent / words[1]
                if included not in self.texts and depth < _MAX_DEPTH:
                    self._read(included, depth + 1)
            self._entries.append((path, entry))

    def records(self) -> Iterator[Entry]:
        """All records in Slurm's order."""
        return (entry for _, entry in self._entries)

    def rewrite(self, ours: Callable[[Entry], Sequence[str] | None]) -> dict[Path, str]:
        """Text of each file with ``ours(record)`` for the site's lines (None: these hold).

        Records come in Slurm's order. Blocks that replace no line are left out.
        """
        out: dict[Path, list[str]] = {path: [] for path in self.texts}
        for path, entry in self._entries:
            if entry.origin:
                lines = ours(entry)
                changed = Entry(entry.origin, None if lines is None else tuple(lines))
                out[path].extend(changed.lines())
        return {path: "\n".join(lines) for path, lines in out.items()}


def _split(text: str, file: Path, checked: bool) -> Iterator[Entry]:
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith(BEGIN_RECORD):
            yield _block(lines, file, checked)
            continue
        record = [line]
        while record[-1].split("#", 1)[0].rstrip().endswith("\\"):
            following = next(lines, None)
            if following is None:
                break
            record.append(following)
        yield Entry(tuple(record))


def _block(lines: Iterator[str], file: Path, checked: bool) -> Entry:
    origin: list[str] = []
    ours: list[str] = []
    for line in lines:
        if line.startswith(_END_RECORD):
            if checked and line.removeprefix(_END_RECORD).strip() != _checksum(ours):
                raise SourceError(
                    f"{file}: lines between '{BEGIN_RECORD}' and '{_END_RECORD}' were changed by"
                    f" hand, near {ours[0] if ours else line!r}; undo that, or change the site's"
                    f" lines behind '{_ORIGIN}' instead and run 'gpu-aware setup --roll' again"
                )
            return Entry(tuple(origin), tuple(ours))
        if line.startswith(_ORIGIN):
            origin.append(line.removeprefix(_ORIGIN).removeprefix(" "))
        else:
            ours.append(line)
    raise SourceError(f"{file}: '{BEGIN_RECORD}' without '{_END_RECORD}'")


def _bare(line: str) -> str:
    return line.split("#", 1)[0].rstrip().removesuffix("\\").strip()


def _checksum(lines: Sequence[str]) -> str:
    return f"{zlib.crc32(chr(10).join(lines).encode()):08x}"


# -- slurm.conf ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlurmConf:
    """The content of a slurm.conf with its includes."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Key in lower case -> value; the last one wins, as in Slurm."""
    nodes: tuple[Mapping[str, str], ...] = ()
    """NodeName lines, keys in lower case; each has the ``NodeName=DEFAULT`` before it merged in."""

    def get(self, key: str) -> str | None:
        """Value of a setting; None if it is not there."""
        return self.settings.get(key.lower())


def read_conf(path: Path) -> SlurmConf:
    """Read a slurm.conf with its ``Include`` files. Raises SourceError if one cannot be read."""
    settings: dict[str, str] = {}
    nodes: list[Mapping[str, str]] = []
    defaults: dict[str, str] = {}
    records = ConfFiles(path, checked=False).records()
    for line in (line for record in records for line in record.effective()):
        record = fields_of(line)
        first = next(iter(record), None)
        if first == "nodename":
            if record["nodename"].upper() == "DEFAULT":
                defaults |= {key: value for key, value in record.items() if key != "nodename"}
            else:
                nodes.append(defaults | record)
        elif first not in _RECORDS and (setting := _setting(line)):
            settings[setting[0]] = setting[1]
    return SlurmConf(settings, tuple(nodes))


def _setting(line: str) -> tuple[str, str] | None:
    """(key in lower case, value) of a line ``Key=value``; None: it is another one."""
    match = _SETTING.match(line.split("#", 1)[0])
    return (match[1].lower(), match[2].strip('"')) if match else None


def edit_settings(text: str, wanted: Mapping[str, str]) -> str:
    """Set ``wanted`` (key as Slurm spells it -> value) in the text of a slurm.conf.

    A key in the text keeps its place (its last line); others go into our block at the end.
    """
    lines = text.splitlines()
    there = {setting[0]: i for i, line in enumerate(lines) if (setting := _setting(line))}
    missing: list[str] = []
    for key, value in wanted.items():
        place = there.get(key.lower())
        if place is None:
            missing.append(f"{key}={value}")
        elif _setting(lines[place]) != (key.lower(), value):
            lines[place] = f"{key}={value}"
    out = "".join(f"{line}\n" for line in lines)
    if not missing:
        return out
    return replace_block(out, [*lines[_span(lines)][1:-1], *missing])


def take_back_settings(text: str, wanted: Mapping[str, str | None], before: str) -> str:
    """Undo `edit_settings`: set ``wanted`` (key -> value; None: no such setting) in a slurm.conf.

    ``before``: the text before the edit, whose lines come back where their value does. Of our block
    only what differs from it stays.
    """
    lines = text.splitlines()
    former = {setting: line for line in before.splitlines() if (setting := _setting(line))}
    there = {setting[0]: i for i, line in enumerate(lines) if (setting := _setting(line))}
    span = _span(lines)
    gone: set[int] = set()
    for key, value in wanted.items():
        place = there.get(key.lower())
        if place is None or (value is not None and _setting(lines[place]) == (key.lower(), value)):
            continue
        if value is None:
            gone.add(place)
        else:
            lines[place] = former.get((key.lower(), value), f"{key}={value}")
    body = [line for i, line in enumerate(lines) if i not in gone]
    if not body[_span(body)][1:-1] and span.stop > span.start:
        start = _span(body).start
        del body[_span(body)]
        # `replace_block` put a blank line before the block at the end of the file.
        if start == len(body) and body and not body[-1].strip():
            del body[-1]
    return "".join(f"{line}\n" for line in body)


def replace_block(text: str, body: list[str]) -> str:
    """Write ``body`` into our block, which is at the end of the file if new; empty: remove it."""
    lines = text.splitlines()
    block = [BEGIN, *body, END] if body else []
    span = _span(lines)
    if block and span.start == len(lines) and lines and lines[-1].strip():
        lines.append("")
        span = _span(lines)
    lines[span] = block
    return "".join(f"{line}\n" for line in lines)


def outside_block(text: str) -> list[str]:
    """Lines that are not in our block."""
    lines = text.splitlines()
    del lines[_span(lines)]
    return lines


def _span(lines: Sequence[str]) -> slice:
    """Our block with its first and its last line; nothing at the end if there is none."""
    start = lines.index(BEGIN) if BEGIN in lines else len(lines)
    if END not in lines[start:]:
        return slice(len(lines), len(lines))
    return slice(start, lines.index(END, start) + 1)
