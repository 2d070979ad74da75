"""Declaration of a key of the comment: its words, and the forms in which other values are written.

The filter reads comments by the same declarations: ``docs/generate.py`` writes them to
``etc/lua/gpu_aware_rules.lua``, and ``etc/lua/gpu_aware_comment.lua`` has a reader for each kind
of form. Both must give the same value for every text. Texts are bytes, one character each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

HintValue = str | int | tuple[int, int]
T_co = TypeVar("T_co", bound=HintValue, covariant=True)

_COUNT = re.compile(r"(?:0|[1-9][0-9]*)\Z")
_DURATION = re.compile(r"([0-9]+)([a-z]+)\Z")
_TIME = re.compile(r"(20\d{2})-(\d{2})-(\d{2})T(\d{2}):(\d{2})(?::(\d{2}))?\Z", re.ASCII)
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Form(Protocol):
    """A form of values; its fields are constants that Lua has, too."""

    kind: ClassVar[str]
    """The name of its reader in Lua."""

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

    units: Mapping[str, int]
    """Unit -> seconds."""
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
    forms: tuple[Form, ...] = ()
    """Tried in their order."""
    says: str = ""
    """The valid values in words, after "valid: "; the words themselves, for a key without forms."""
    listed: str = ""
    """A list of the site whose entries are words, too, before ``words``; a key of the filter's
    configuration (``gpu_aware_conf.lua``), and of `parse_comment`'s ``lists``."""
    switch: str = ""
    """A key of the filter's configuration; without it the filter has only the listed words."""
    none: str = ""
    """The word that asks for nothing."""
    of_shards: bool = True
    """Whether it plays a part in jobs of shards."""
    by_site: bool = True
    """Whether ``[site.defaults]`` may give it."""
    carried: bool = False
    """Whether requests hold it for a stage (`HINTED`); else admission makes of it what counts."""

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


_PYTHON_ONLY = ("by_site", "carried")


def form_table(form: Form) -> dict[str, object]:
    """Constants of a form for Lua."""
    own = {k: form_table(v) if hasattr(v, "kind") else v for k, v in vars(form).items()}
    return {"kind": form.kind, **own}
