"""Reader and editor of slurm.conf and gres.conf that keeps the site's lines, order and spelling.

Settings are set in the record that counts, or in one block of ours at the end of the file. A
changed record of nodes becomes a block of its own: the site's lines, each behind ``#|``, then the
lines that hold instead. Without the blocks the file is what it was, byte for byte. The end of a
block of nodes has a checksum of our lines, so that a change by hand is never overwritten. Each
change is read back as Slurm would, before a file is written.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conf_grammar import (
    fields_of,
    in_order,
    included,
    pairs_of,
    quoted_value,
    read_text,
    records_of,
    render_pairs,
    unquoted,
)
from slurm_gpu_aware.slurm.words import expand_hostlist, words_of

BEGIN = "# BEGIN gpu-aware (written by gpu-aware setup; edit above or below)"
END = "# END gpu-aware"
BEGIN_RECORD = "# BEGIN gpu-aware nodes"
"""Start of the lines of moved nodes, in slurm.conf and gres.conf."""
_BEGIN_LINE = f"{BEGIN_RECORD}: instead of the lines behind '#|', by 'gpu-aware setup --roll'"
_END_RECORD = "# END gpu-aware nodes"
_ORIGIN = "#|"
_RECORDS = frozenset(
    {"nodename", "partitionname", "downnodes", "nodeset", "frontendname", "poweraction", "name"}
)
"""First keys of records with several keys; after another key Slurm reads nothing more."""
_PARALLEL = frozenset({"nodeaddr", "nodehostname", "bcastaddr", "port"})
"""Parameters of a NodeName line that hold one value per node."""
REPEATED = frozenset({"prolog", "epilog", "prologslurmctld", "epilogslurmctld", "slurmctldhost"})
"""Settings of which each line counts; of another one the last."""


# -- records ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Entry:
    """One record of a file: its lines, or a block that replaces them."""

    origin: tuple[str, ...]
    """The site's lines with continuations and comments; empty: the block replaces no line."""
    ours: tuple[str, ...] | None = None  # Lines that hold instead; None: the site's lines hold.
    in_block: bool = False  # A line of our block of settings.

    @property
    def text(self) -> str:
        """The site's record as Slurm joins it."""
        return next((record for _, record in records_of("\n".join(self.origin))), "")

    def effective(self) -> tuple[str, ...]:
        """The records that Slurm reads."""
        if self.ours is None:
            return (self.text,)
        return tuple(record for _, record in records_of("\n".join(self.ours)))

    def lines(self) -> Sequence[str]:
        """The lines in the file."""
        if self.ours is None:
            return self.origin
        origin = [f"{_ORIGIN} {line}" for line in self.origin]
        return [_BEGIN_LINE, *origin, *self.ours, f"{_END_RECORD} {_checksum(self.ours)}"]


class ConfFiles:
    """A configuration file with its includes.

    ``texts``: file -> text to read instead of it. Raises SourceError if a file cannot be read, if
    Slurm would refuse a line, or (``checked``) if a block was changed by hand.
    """

    def __init__(
        self,
        path: Path,
        *,
        missing_ok: bool = False,
        checked: bool = True,
        texts: Mapping[Path, str] | None = None,
    ) -> None:
        self.path = path
        self._checked = checked
        self._given = {path: ""} if missing_ok and not path.exists() else {}
        self._given |= texts or {}
        self._names: dict[Path, Path] = {}
        """File -> its first name."""
        self._entries: dict[Path, list[Entry]] = {}
        self.texts: dict[Path, str] = {}
        self.effective: list[tuple[str, Entry]] = []
        """The records in the order in which Slurm reads them, each with its entry."""
        for name, record, entry in in_order(str(path), self._read):
            self._check(name, record)
            self.effective.append((record, entry))

    def _read(self, name: str) -> Iterator[tuple[str, Entry]]:
        real = Path(name).resolve()
        path = self._names.setdefault(real, Path(name))
        if path not in self._entries:
            given = self._given.get(path)
            self.texts[path] = read_text(name) if given is None else given
            self._entries[path] = list(_split(self.texts[path], path, self._checked))
        for entry in self._entries[path]:
            for record in entry.effective() or ("",):
                yield record, entry

    def _check(self, name: str, record: str) -> None:
        """Raise SourceError for a record at which slurmctld would end."""
        include = included(record)
        pairs, rest = ([], include[1]) if include else pairs_of(record)
        if include and "*" in include[0] and self.path.name == "slurm.conf":
            why = "Slurm takes no pattern for Include; name each file"
        elif rest:
            why = f"Slurm does not read {quoted(rest)}; valid is Key=Value, or Include FILE"
        elif len(pairs) > 1 and pairs[0][0].lower() not in _RECORDS:
            why = f"Slurm reads one setting per line; give {pairs[1][0]} a line of its own"
        else:
            return
        raise SourceError(f"{name}: line {quoted(record.strip())}: {why}")

    def read(self) -> Iterator[str]:
        """The records that Slurm reads, in its order."""
        return (record for record, _ in self.effective)

    def records(self) -> Iterator[Entry]:
        """All entries in Slurm's order."""
        return iter(dict.fromkeys(entry for _, entry in self.effective))

    def settings(self) -> list[tuple[str, str, Entry]]:
        """(key in lower case, value without quotes, entry) of all settings in Slurm's order."""
        found = []
        for record, entry in self.effective:
            pairs = pairs_of(record)[0]
            if pairs and pairs[0][0].lower() not in _RECORDS:
                found.append((pairs[0][0].lower(), unquoted(pairs[0][1]), entry))
        return found

    @cached_property
    def values(self) -> Mapping[str, tuple[str, ...]]:
        """Key in lower case -> the values that count: of a setting of `REPEATED` all."""
        return _counting((key, value) for key, value, _ in self.settings())

    def get(self, key: str) -> str | None:
        """Value of a setting; None if it is not there."""
        return self.values.get(key.lower(), (None,))[-1]

    def all(self, key: str) -> tuple[str, ...]:
        """The values of a setting that count."""
        return self.values.get(key.lower(), ())

    def nodes(self, *, of_site: bool = False) -> dict[str, dict[str, str]]:
        """Name -> values of each node, as Slurm reads them or (``of_site``) without our lines.

        Keys are in lower case. Raises SourceError for names that are no host list.
        """
        found: dict[str, dict[str, str]] = {}
        defaults: dict[str, str] = {}
        records = (entry.text for entry in self.records()) if of_site else self.read()
        for values in filter(None, (node_fields(record, defaults) for record in records)):
            names = names_of(values.pop("nodename"))
            lists = {key: per_node(key, value) for key, value in values.items()}
            for at, name in enumerate(names):
                own = {key: some[at] for key, some in lists.items() if len(some) == len(names)}
                found[name] = values | own
        return found

    def block(self) -> list[Entry]:
        """The entries of our block of settings, without its first and last line."""
        return [entry for entry in self._entries[self.path] if entry.in_block][1:-1]

    def with_lines(
        self, new: Mapping[Entry, Sequence[str]], added: Sequence[str] = ()
    ) -> dict[Path, str]:
        """The changed files with other lines for some entries, and further ones in our block.

        A new block stands at the end: before the last line if that has no end of line, so that it
        can go without a trace. An empty one goes.
        """
        out = {}
        for path, entries in self._entries.items():
            parts = [list(new.get(entry, entry.lines())) for entry in entries]
            inside = [part for entry, part in zip(entries, parts, strict=True) if entry.in_block]
            if path == self.path and added:
                if not inside:
                    inside = [[BEGIN], [END]]
                    parts[-1:-1] = inside
                inside[-1][:0] = added
            elif inside and not any(inside[1:-1]):
                inside[0].clear()
                inside[-1].clear()
            text = "\n".join(chain.from_iterable(parts))
            if text != self.texts[path]:
                if included(last := entries[-1].text) and not last[-1].isspace():
                    raise SourceError(
                        f"{path}: the last line, {quoted(last)}, has no end of line, so that Slurm"
                        " reads on behind it (a fault of Slurm); add an empty line"
                    )
                out[path] = text
        return out

    def rewrite(
        self, ours: Callable[[Entry], Sequence[str] | None], alone: Sequence[str] = ()
    ) -> dict[Path, str]:
        """The changed files with ``ours(record)`` for the site's lines (None: these hold).

        Records come in Slurm's order. ``alone``: lines of a block that replaces no line.
        """
        new: dict[Entry, Sequence[str]] = {}
        for entry in self.records():
            lines = ours(entry) if entry.origin else None
            changed = Entry(entry.origin, None if lines is None else tuple(lines))
            new[entry] = changed.lines()
        if alone:
            last = self._entries[self.path][-1]
            new[last] = [*Entry((), tuple(alone)).lines(), *new[last]]
        return self.with_lines(new)


def node_fields(record: str, defaults: dict[str, str]) -> dict[str, str] | None:
    """A NodeName record with the ``defaults``; None: another one, or one that changed these.

    Keys are in lower case; ``feature`` is ``features``, as it precedes it in Slurm.
    """
    fields = fields_of(record)
    if next(iter(fields), None) != "nodename":
        return None
    if "feature" in fields:
        fields["features"] = fields.pop("feature")
    if fields["nodename"].upper() != "DEFAULT":
        return defaults | fields
    defaults |= {key: value for key, value in fields.items() if key != "nodename"}
    return None


def per_node(key: str, value: str) -> list[str]:
    """Values of a parameter of a node line that can have one per node; none of another one."""
    bare = unquoted(value)
    if key == "port" and "[" not in bare:  # Slurm takes 7001-7004 for a list, too
        bare = f"[{bare}]"
    return names_of(bare) if key in _PARALLEL and ("[" in bare or "," in bare) else []


def names_of(text: str) -> list[str]:
    """Names of a host list. Raises SourceError."""
    return list(expand_hostlist(unquoted(text)))


def _split(text: str, file: Path, checked: bool) -> Iterator[Entry]:
    marks = [line.rstrip() for line in text.split("\n")]
    begin = marks.index(BEGIN) if BEGIN in marks else len(marks)
    span = range(begin, marks.index(END, begin) + 1) if END in marks[begin:] else range(0)
    block: list[str] | None = None
    at = 0
    for lines, _ in records_of(text):
        if lines[0].startswith(BEGIN_RECORD) and block is None:
            block = []
        elif block is None:
            yield Entry(tuple(lines), in_block=at in span)
        elif lines[0].startswith(_END_RECORD):
            yield _block(block, lines[0], file, checked)
            block = None
        else:
            block += lines
        at += len(lines)
    if block is not None:
        raise SourceError(f"{file}: '{BEGIN_RECORD}' without '{_END_RECORD}'")


def _block(lines: Sequence[str], end: str, file: Path, checked: bool) -> Entry:
    behind = [line for line in lines if line.startswith(_ORIGIN)]
    origin = tuple(line.removeprefix(_ORIGIN).removeprefix(" ") for line in behind)
    ours = tuple(line for line in lines if not line.startswith(_ORIGIN))
    if checked and end.removeprefix(_END_RECORD).strip() != _checksum(ours):
        raise SourceError(
            f"{file}: lines between '{BEGIN_RECORD}' and '{_END_RECORD}' were changed by"
            f" hand, near {ours[0] if ours else end!r}; undo that, or change the site's"
            f" lines behind '{_ORIGIN}' instead and run 'gpu-aware setup --roll' again"
        )
    if len(list(records_of("\n".join(origin)))) > 1:
        raise SourceError(
            f"{file}: the lines behind '{_ORIGIN}' near {origin[0]!r} are more than one record;"
            " write the others outside of our lines"
        )
    return Entry(origin, ours)


def _checksum(lines: Sequence[str]) -> str:
    return f"{zlib.crc32(chr(10).join(lines).encode('utf-8', 'surrogateescape')):08x}"


# -- slurm.conf ------------------------------------------------------------------------------------


def read_conf(path: Path) -> ConfFiles:
    """Read a slurm.conf with its ``Include`` files. Raises SourceError if one cannot be read."""
    return ConfFiles(path, checked=False)


def _counting(settings: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Key -> the values that count."""
    found: dict[str, tuple[str, ...]] = {}
    for key, value in settings:
        found[key] = (*found.get(key, ()), value) if key in REPEATED else (value,)
    return found


def edit_settings(conf: ConfFiles, wanted: Mapping[str, str]) -> dict[Path, str]:
    """The changed files with the settings ``wanted`` (key as Slurm spells it -> value).

    The record that counts is changed, the last one over all files; keys that are nowhere go into
    our block at the end, as does a further value of a setting of `REPEATED`. Raises SourceError if
    Slurm would not read the result so.
    """
    found = conf.settings()
    there = {key: entry for key, _, entry in found}
    meant = dict(conf.values)
    new: dict[Entry, Sequence[str]] = {}
    added: list[str] = []
    for key, value in wanted.items():
        low = key.lower()
        if value in meant.get(low, ()):
            continue
        if low in REPEATED or low not in there:
            added.append(setting_line(key, value))
            meant[low] = (*meant.get(low, ()), value)
        else:
            new[there[low]] = [setting_line(key, value, there[low])]
            meant[low] = (value,)
    changed = conf.with_lines(new, added)
    _read_back(conf, changed, meant)
    return changed


def setting_line(key: str, value: str, instead: Entry | None = None) -> str:
    """The line of a setting, with the end of line of the one that it replaces."""
    end = "\r" if instead and instead.origin[-1].endswith("\r") else ""
    return render_pairs([(key, quoted_value(value))]) + end


def take_back_settings(
    conf: ConfFiles, site: Callable[[str, str], str | None], before: ConfFiles | None
) -> dict[Path, str]:
    """Undo `edit_settings`: the changed files.

    ``site(key in lower case, value)``: the value without what setup added; None: no such setting.
    ``before``: the files before the edit, whose lines come back where their value does. Of our
    block only what differs from the rest stays. Raises SourceError as `edit_settings`.
    """
    settings = before.settings() if before else ()
    former = {(k, *words_of(v)): (v, entry.origin) for k, v, entry in settings}
    found = conf.settings()
    outside = {key: site(key, value) for key, value, entry in found if not entry.in_block}
    new: dict[Entry, Sequence[str]] = {}
    kept: list[tuple[str, str]] = []
    for key, value, entry in found:
        own = site(key, value)
        if own is None or (entry.in_block and outside.get(key) == own):
            new[entry] = ()
            continue
        was = None if entry.in_block else former.get((key, *words_of(own)))
        if was is not None and was[0] != value:
            own, new[entry] = was
        elif own != value:
            new[entry] = (setting_line(pairs_of(entry.text)[0][0][0], own, entry),)
        kept.append((key, own))
    changed = conf.with_lines(new)
    _read_back(conf, changed, _counting(kept))
    return changed


def _read_back(
    conf: ConfFiles, changed: Mapping[Path, str], meant: Mapping[str, tuple[str, ...]]
) -> None:
    """Raise SourceError unless Slurm would read the changed files as meant, nodes as before."""
    after = ConfFiles(conf.path, checked=False, texts={**conf.texts, **changed})
    found = after.values
    wrong = [k for k in {**meant, **found} if sorted(found.get(k, ())) != sorted(meant.get(k, ()))]
    if wrong or after.nodes() != conf.nodes():
        what = f"{wrong[0]}={found.get(wrong[0])}" if wrong else "other nodes"
        raise SourceError(
            f"{conf.path}: nothing was written: Slurm would read {what} in the changed file; set"
            f" {', '.join(wrong) or 'them'} by hand in one line without continuation"
        )
