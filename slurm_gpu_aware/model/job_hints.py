"""What users type: ``--comment=class=A,bw=high``. The grammar of ``docs/comment.md``.

``etc/lua/gpu_aware_comment.lua`` parses the same grammar inside slurmctld. Both give the same
verdict and the same sentence for every comment; a test feeds them the same comments. The grammar
is one of bytes: everything outside printable ASCII is merely "not valid".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from slurm_gpu_aware.errors import RequestError

__all__ = ["BANDWIDTHS", "KEYS", "MAX_LENGTH", "PATTERNS", "JobHints", "parse_comment"]

KEYS = ("class", "bw", "pattern", "gpus", "freq", "model", "place")
"""Known keys, in the order in which messages list them."""
BANDWIDTHS = ("high", "low")
PATTERNS = ("ring", "tree", "ring+tree", "all-to-all", "none")
MAX_LENGTH = 1024
"""Bytes; Slurm itself refuses longer comments."""

_COUNT = re.compile(r"[1-9][0-9]{0,4}\Z")
_RANGE = re.compile(r"([1-9][0-9]{0,4})-([1-9][0-9]{0,4})\Z")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_MHZ_MIN, _MHZ_MAX = 100, 10_000
_SHOWN = 40

_T = TypeVar("_T")


@dataclass(frozen=True)
class JobHints:
    """A comment that is ours. None everywhere: the user left it to the site's defaults."""

    app_class: str | None = None
    """One of the site's classes, or ``auto``."""
    bw: str | None = None
    """``high`` or ``low``."""
    pattern: str | None = None
    """Communication pattern, one of `PATTERNS`."""
    gpus: tuple[int, int] | None = None
    """(least, most) GPUs in total; equal for ``gpus=N``; moldable if they differ."""
    freq: str | int | None = None
    """``auto``, ``max``, or MHz."""
    model: str | None = None
    """Name of a performance model in the store (not checked here)."""
    place: str | None = None
    """A policy that the site allows, or ``off``."""


def parse_comment(
    text: str | None, classes: Sequence[str], policies: Sequence[str]
) -> JobHints | None:
    """Parse a job's comment.

    Parameters
    ----------
    text : the comment as Slurm shows it; None or empty: no comment.
    classes : the site's application classes.
    policies : policies that users may name with ``place=``.

    Returns
    -------
    None if the comment is not ours: no entry has one of our keys.

    Raises
    ------
    RequestError
        The comment is too long, or one of our keys occurs and something is wrong; the sentence
        names the valid values.
    """
    raw = _bytes(text or "")
    if len(raw) > MAX_LENGTH:
        raise _wrong(f"the comment is longer than {MAX_LENGTH} characters; shorten it")
    entries = [_split(item) for item in raw.split(",")]
    if not any(value is not None and key in KEYS for key, value in entries):
        return None
    found: dict[str, str] = {}
    for key, value in entries:
        if value is None:
            raise _wrong(
                f"comment entry '{_shown(key)}' is not key=value; valid keys: {', '.join(KEYS)}"
            )
        if key not in KEYS:
            raise _wrong(f"comment key '{_shown(key)}' is not known; valid keys: {', '.join(KEYS)}")
        if key in found:
            raise _wrong(f"comment key '{key}' is given twice; give it once")
        found[key] = value
    return JobHints(
        app_class=_choice(found, "class", [*classes, "auto"]),
        bw=_choice(found, "bw", BANDWIDTHS),
        pattern=_choice(found, "pattern", PATTERNS),
        gpus=_value(found, "gpus", _gpus, "a number such as 4, or a range such as 2-8"),
        freq=_value(found, "freq", _freq, f"auto, max, or MHz from {_MHZ_MIN} to {_MHZ_MAX}"),
        model=_value(
            found, "model", _model, "a name of letters, digits, '.', '_' and '-', at most 64"
        ),
        place=_choice(found, "place", [*policies, "off"]),
    )


def _bytes(text: str) -> str:
    """One character per byte, so that lengths and verdicts are those of C and Lua strings."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "replace")
    return raw.decode("latin-1")


def _split(item: str) -> tuple[str, str | None]:
    """(key, value) of an entry, blanks around both removed; value None without ``=``."""
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
        raise _wrong(f"{key}={_shown(text)} is not valid; valid: {valid}")
    return value


def _gpus(text: str) -> tuple[int, int] | None:
    if _COUNT.match(text):
        return int(text), int(text)
    match = _RANGE.match(text)
    if match is None or int(match[1]) > int(match[2]):
        return None
    return int(match[1]), int(match[2])


def _freq(text: str) -> str | int | None:
    if text in ("auto", "max"):
        return text
    if _COUNT.match(text) and _MHZ_MIN <= int(text) <= _MHZ_MAX:
        return int(text)
    return None


def _model(text: str) -> str | None:
    return text if _MODEL.match(text) else None


def _shown(text: str) -> str:
    """A user's text as it may stand in a sentence: printable ASCII, at most 40 characters."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text[:_SHOWN])
    return plain + "..." if len(text) > _SHOWN else plain


def _wrong(sentence: str) -> RequestError:
    return RequestError(f"gpu-aware: {sentence}")
