"""Job hints: declaration of the keys of a comment, and its parser.

A key has words, and forms in which other values are written: ``--comment=class=A,bw=high``, or
``run 7 gpu:class=A``. ``docs/comment.md`` describes the grammar. ``etc/lua/gpu_aware_comment.lua``
parses it inside slurmctld by the same declarations, which ``docs/generate.py`` writes to
``etc/lua/gpu_aware_rules.lua``; both parsers must give the same result and the same sentence for
every comment. The grammar is one of bytes, one character each: everything outside printable ASCII
is "not valid". The keys of the core stand here, those of features in their folders
(`features.hints`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.model.facets import Facet

HintValue = str | int | tuple[int, int]
T_co = TypeVar("T_co", bound=HintValue, covariant=True)

_COUNT = re.compile(r"(?:0|[1-9][0-9]*)\Z")
_DURATION = re.compile(r"([0-9]+)([a-z]+)\Z")
_TIME = re.compile(r"(20\d{2})-(\d{2})-(\d{2})T(\d{2}):(\d{2})(?::(\d{2}))?\Z", re.ASCII)
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PYTHON_ONLY = ("by_site", "carried")
AUTO = "auto"  # The class by the user's earlier jobs.
OFF = "off"  # Slurm places the job.
# Blanks as C and Lua have them, of a text of bytes
_MARK = re.compile(rf"(?:\A|(?<=[ \t\n\v\f\r])){rules.COMMENT_MARK}")


class Form(Protocol):
    """A form of values; its fields are constants that Lua has, too."""

    kind: ClassVar[str]  # The name of its reader in Lua.

    def read(self, text: str) -> HintValue | None:
        """The value of a text; None: it has not this form."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number: ``1200``."""

    least: int
    most: int
    kind: ClassVar[str] = "whole"

    def read(self, text: str) -> int | None:
        """The number."""
        if len(text) > len(str(self.most)) or not _COUNT.match(text):
            return None  # int() refuses thousands of digits
        return int(text) if self.least <= int(text) <= self.most else None


@dataclass(frozen=True)
class Range:
    """A whole number or a range of them: ``4``, ``2-8``."""

    least: int
    most: int
    kind: ClassVar[str] = "range"

    def read(self, text: str) -> tuple[int, int] | None:
        """(first, last); equal for a number."""
        begin, dash, end = text.partition("-")
        number = Whole(self.least, self.most)
        first, last = number.read(begin), number.read(end if dash else begin)
        if first is None or last is None or first > last:
            return None
        return first, last


@dataclass(frozen=True)
class Name:
    """A name; the pattern is a Python regular expression and a Lua pattern of one meaning."""

    pattern: str
    longest: int
    kind: ClassVar[str] = "name"

    def read(self, text: str) -> str | None:
        """The name."""
        sound = len(text) <= self.longest and re.match(rf"{self.pattern}\Z", text)
        return text if sound else None


@dataclass(frozen=True)
class Duration:
    """A whole number of one of the units: ``36h``."""

    units: Mapping[str, int]  # Unit -> seconds.
    most_s: int
    kind: ClassVar[str] = "duration"

    def read(self, text: str) -> int | None:
        """The seconds, at least 1."""
        found = _DURATION.match(text)
        if found is None or (unit := self.units.get(found[2])) is None:
            return None
        count = Whole(1, self.most_s // unit).read(found[1])
        return None if count is None else count * unit


@dataclass(frozen=True)
class Time:
    """A local time of 2000 to 2099, with or without seconds: ``2026-12-01T08:00``."""

    kind: ClassVar[str] = "time"

    def read(self, text: str) -> str | None:
        """The text."""
        if not (match := _TIME.match(text)):
            return None
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups())
        if not 1 <= month <= 12:
            return None
        days = _DAYS[month - 1] + (month == 2 and year % 4 == 0)
        sound = 1 <= day <= days and hour <= 23 and minute <= 59 and second <= 59
        return text if sound else None


@dataclass(frozen=True)
class Repeated:
    """A count and a duration: ``90x10m``."""

    count: Whole
    each: Duration
    kind: ClassVar[str] = "repeated"

    def read(self, text: str) -> tuple[int, int] | None:
        """(count, seconds of each)."""
        first, _, each = text.partition("x")
        count, seconds = self.count.read(first), self.each.read(each)
        return None if count is None or seconds is None else (count, seconds)


DURATION = Duration({"m": 60, "min": 60, "h": 3600, "d": 86_400}, 366 * 86_400)
"""A duration as users write it: ``90m``, ``36h``, ``2d``."""


@dataclass(frozen=True)
class Hint(Generic[T_co]):
    """A key of the comment; its value is one of some words, or has one of some forms."""

    key: str
    words: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()  # Tried in their order.
    says: str = ""
    """The valid values in words, after "valid: "; the words themselves, for a key without forms."""
    listed: str = ""
    """A list of the site whose entries are words, too, before ``words``; a key of the filter's
    configuration (``gpu_aware_conf.lua``), and of `parse_comment`'s ``lists``."""
    switch: str = ""
    """A key of the filter's configuration; without it the filter has only the listed words."""
    none: str = ""  # The word that asks for nothing.
    of_shards: bool = True  # Whether it plays a part in jobs of shards.
    by_site: bool = True  # Whether ``[site.defaults]`` may give it.
    carried: bool = False
    """Whether requests hold it for a stage (`HINTED`); else `admission.py` says what it means."""

    def __post_init__(self) -> None:
        if bool(self.forms) != bool(self.says):
            raise ValueError(f"hint {self.key}: what its forms are must be said")

    def valid(self, lists: Mapping[str, Sequence[str]]) -> str:
        """The valid values in words."""
        return self.says or ", ".join(self._words(lists))

    def read(self, text: str, lists: Mapping[str, Sequence[str]] | None = None) -> T_co | None:
        """The value of a text; None: it is not valid. ``lists``: those of the site."""
        value: Any = text if text in self._words(lists or {}) else None
        for form in self.forms:
            value = form.read(text) if value is None else value
        found: T_co | None = value
        return found

    def _words(self, lists: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        return (*lists.get(self.listed, ()), *self.words)

    def table(self) -> dict[str, object]:
        """Constants for Lua."""
        own = {k: v for k, v in vars(self).items() if v and k not in _PYTHON_ONLY}
        return {**own, "forms": [form_table(form) for form in self.forms]}


def form_table(form: Form) -> dict[str, object]:
    """Constants of a form for Lua."""
    own = {k: form_table(v) if hasattr(v, "kind") else v for k, v in vars(form).items()}
    return {"kind": form.kind, **own}


CLASS: Hint[str] = Hint("class", (AUTO,), listed="classes")
BANDWIDTH: Hint[str] = Hint("bw", ("high", "low"))
PATTERN: Hint[str] = Hint("pattern", ("ring", "tree", "ring+tree", "all-to-all", "none"))
"""Communication pattern."""
PLACE: Hint[str] = Hint("place", (OFF,), listed="policies", switch="place_off")
"""A policy that the site allows."""


@dataclass(frozen=True)
class JobHints:
    """Hints of a comment with our keys."""

    values: Mapping[str, HintValue] = field(default_factory=dict)
    """Key -> value; the site's default applies where there is none."""

    def get(self, hint: Hint[T_co]) -> T_co | None:
        """The value of a key; None: it is not given."""
        found: T_co | None = self.values.get(hint.key)  # type: ignore[assignment]
        return found

    def filled(self, other: JobHints) -> JobHints:
        """These hints, and those of ``other`` where there are none; ``class=auto`` is none."""
        mine = dict(self.values)
        if self.get(CLASS) == AUTO:
            del mine[CLASS.key]
        return JobHints({**other.values, **mine})

    def carried(self, hints: Iterable[Hint[HintValue]]) -> JobHints:
        """Those of the keys that requests hold for stages."""
        given = [hint.key for hint in hints if hint.carried and hint.key in self.values]
        return JobHints({key: self.values[key] for key in given})


NO_HINTS = JobHints()  # Those of a job that says nothing.
HINTED: Facet[JobHints] = Facet("hints", NO_HINTS, JobHints)
"""Of a request: those for stages (`Hint.carried`)."""


def parse_comment(
    text: str | None, hints: Sequence[Hint[HintValue]], lists: Mapping[str, Sequence[str]]
) -> JobHints | None:
    """Hints of a comment as Slurm shows it; None: it has none.

    ``hints``: the keys, in the order in which values are checked. ``lists``: those of the site that
    `Hint.listed` names.

    A comment has hints if all of it, or all after its last ``gpu:``, is ``key=value`` with keys of
    ours. Raises RequestError if a value is then not valid or a key is given twice; the sentence
    names the valid values.
    """
    raw = _bytes(text or "")
    if len(raw) > rules.MAX_TEXT:
        return None
    marks = [m.end() for m in _MARK.finditer(raw)]
    entries = [_split(item) for item in raw[marks[-1] if marks else 0 :].split(",")]
    keys = {hint.key for hint in hints}
    if any(value is None or key not in keys for key, value in entries):
        return None
    found: dict[str, str] = {}
    for key, value in entries:
        if key in found:
            raise _wrong("twice", key)
        found[key] = value or ""
    values: dict[str, HintValue] = {}
    for hint in hints:
        if (given := found.get(hint.key)) is None:
            continue
        if (read := hint.read(given, lists)) is None:
            raise _wrong("not_valid", hint.key, _shown(given), hint.valid(lists))
        values[hint.key] = read
    return JobHints(values)


def _bytes(text: str) -> str:
    """One character per byte, so that lengths and results equal those of C and Lua strings."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "replace")
    return raw.decode("latin-1")


def _split(item: str) -> tuple[str, str | None]:
    """(key, value) of an entry, without blanks around them; value None without ``=``."""
    key, equals, value = item.partition("=")
    return key.strip(" \t"), value.strip(" \t") if equals else None


def _shown(text: str) -> str:
    """A user's text for a sentence: printable ASCII, shortened."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text[: rules.MAX_SHOWN])
    return plain + "..." if len(text) > rules.MAX_SHOWN else plain


def _wrong(sentence: str, *words: str) -> RequestError:
    return RequestError(rules.SENTENCES[sentence] % words)
