"""Job hints and their parser: ``--comment=class=A,bw=high``, or ``run 7 gpu:class=A``.

``docs/comment.md`` describes the grammar. ``etc/lua/gpu_aware_comment.lua`` parses it inside
slurmctld by the same table of rules (`filter_rules`); both parsers must give the same result and
the same sentence for every comment. The grammar is one of bytes: everything outside printable ASCII
is "not valid".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.errors import RequestError

_DURATION = re.compile(r"([0-9]+)([a-z]+)\Z")
_COUNT = re.compile(r"[1-9][0-9]*\Z")
# Blanks as C and Lua have them, of a text of bytes
_MARK = re.compile(rf"(?:\A|(?<=[ \t\n\v\f\r])){rules.COMMENT_MARK}")
_MODEL = re.compile(rf"{rules.MODEL}\Z")
_TIME = re.compile(r"(20\d{2})-(\d{2})-(\d{2})T(\d{2}):(\d{2})(?::(\d{2}))?\Z", re.ASCII)
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_T = TypeVar("_T")


@dataclass(frozen=True)
class JobHints:
    """Hints of a comment with our keys. A field is None if the site's default applies."""

    app_class: str | None = None
    """One of the site's classes, or ``auto``."""
    bw: str | None = None
    """``high`` or ``low``."""
    pattern: str | None = None
    """Communication pattern, one of `filter_rules.PATTERNS`."""
    gpus: tuple[int, int] | None = None
    """(least, most) GPUs in total; equal for ``gpus=N``."""
    freq: str | int | None = None
    """``auto``, ``max``, or MHz."""
    model: str | None = None
    """Name of a performance model in the store (not checked here)."""
    move: str | int | None = None
    """``ok``, ``no``, or the time that a restart of the job takes, in seconds."""
    due: str | int | None = None
    """A local time, ``2026-12-01T08:00`` with or without seconds, or seconds from submission."""
    epochs: tuple[int, int] | None = None
    """(most epochs, seconds of each)."""
    place: str | None = None
    """A policy that the site allows, or ``off``."""

    def filled(self, other: JobHints) -> JobHints:
        """These hints, and those of ``other`` where there are none; ``class=auto`` is none."""
        mine = {k: v for k, v in vars(self).items() if v is not None}
        if self.app_class == "auto":
            del mine["app_class"]
        return replace(other, **mine)


def parse_comment(
    text: str | None, classes: Sequence[str], policies: Sequence[str]
) -> JobHints | None:
    """Hints of a comment as Slurm shows it; None: it has none.

    ``classes``: the site's application classes. ``policies``: those that ``place=`` may name.

    A comment has hints if all of it, or all after its last ``gpu:``, is ``key=value`` with keys of
    ours. Raises RequestError if a value is then not valid or a key is given twice; the sentence
    names the valid values.
    """
    raw = _bytes(text or "")
    if len(raw) > rules.MAX_TEXT:
        return None
    marks = [m.end() for m in _MARK.finditer(raw)]
    entries = [_split(item) for item in raw[marks[-1] if marks else 0 :].split(",")]
    found: dict[str, str] = {}
    for key, value in entries:
        if value is None or key not in rules.COMMENT_KEYS:
            return None
    for key, value in entries:
        if key in found:
            raise _wrong("twice", key)
        found[key] = value or ""
    return JobHints(
        app_class=_choice(found, "class", [*classes, "auto"]),
        bw=_choice(found, "bw", rules.BANDWIDTHS),
        pattern=_choice(found, "pattern", rules.PATTERNS),
        gpus=_value(found, "gpus", _gpus, rules.VALID["gpus"]),
        freq=_value(found, "freq", _freq, rules.VALID["freq"]),
        model=_value(found, "model", _model, rules.VALID["model"]),
        move=_value(found, "move", parse_move, rules.VALID["move"]),
        due=_value(found, "due", _due, rules.VALID["due"]),
        epochs=_value(found, "epochs", _epochs, rules.VALID["epochs"]),
        place=_choice(found, "place", [*policies, "off"]),
    )


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


def _choice(found: Mapping[str, str], key: str, valid: Sequence[str]) -> str | None:
    return _value(found, key, lambda v: v if v in valid else None, ", ".join(valid))


def _value(found: Mapping[str, str], key: str, read: Callable[[str], _T], valid: str) -> _T | None:
    text = found.get(key)
    if text is None:
        return None
    value = read(text)
    if value is None:
        raise _wrong("not_valid", key, _shown(text), valid)
    return value


def _number(text: str, least: int, most: int) -> int | None:
    if len(text) > len(str(most)) or not _COUNT.match(text):  # int() refuses thousands of digits
        return None
    return int(text) if least <= int(text) <= most else None


def _gpus(text: str) -> tuple[int, int] | None:
    first, dash, last = text.partition("-")
    least = _number(first, 1, rules.MAX_GPUS)
    most = _number(last if dash else first, 1, rules.MAX_GPUS)
    return (least, most) if least and most and least <= most else None


def _freq(text: str) -> str | int | None:
    return text if text in rules.CLOCK_WORDS else _number(text, rules.MIN_MHZ, rules.MAX_MHZ)


def _model(text: str) -> str | None:
    return text if len(text) <= rules.MAX_NAME and _MODEL.match(text) else None


def parse_move(text: str) -> str | int | None:
    """`JobHints.move` of a text; None: it is none."""
    if text in rules.MOVE_WORDS:
        return text
    return _number(text[:-1], 1, rules.MAX_RESTART_S) if text.endswith("s") else None


def _due(text: str) -> str | int | None:
    return duration_s(text, rules.DUE_UNITS) or (text if _is_time(text) else None)


def _epochs(text: str) -> tuple[int, int] | None:
    count, _, each = text.partition("x")
    epochs, seconds = _number(count, 1, rules.MAX_EPOCHS), duration_s(each, rules.EPOCH_UNITS)
    return (epochs, seconds) if epochs and seconds else None


def duration_s(text: str, units: Mapping[str, int]) -> int | None:
    """Seconds of a duration such as ``36h``, at most `filter_rules.MAX_DUE_S`; None: it is none.

    ``units``: unit -> seconds.
    """
    found = _DURATION.match(text)
    if found is None or (unit := units.get(found[2])) is None:
        return None
    count = _number(found[1], 1, rules.MAX_DUE_S // unit)
    return None if count is None else count * unit


def _is_time(text: str) -> bool:
    if not (match := _TIME.match(text)):
        return False
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups())
    if not 1 <= month <= 12:
        return False
    days = _DAYS[month - 1] + (month == 2 and year % 4 == 0)
    return 1 <= day <= days and hour <= 23 and minute <= 59 and second <= 59


def _shown(text: str) -> str:
    """A user's text for a sentence: printable ASCII, shortened."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text[: rules.MAX_SHOWN])
    return plain + "..." if len(text) > rules.MAX_SHOWN else plain


def _wrong(sentence: str, *words: str) -> RequestError:
    return RequestError(rules.SENTENCES[sentence] % words)
