"""Parsers of values in Slurm's texts: durations, TRES lists, licences, lists of indices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from slurm_gpu_aware.errors import SourceError

__all__ = [
    *("UNSET", "gpu_count", "parse_duration"),
    *("parse_indices", "parse_licenses", "parse_tres"),
]

UNSET = frozenset({"(null)", "N/A", "None", "Unknown", "NONE", "none", ""})
"""Slurm's spellings of no value."""

_LICENSE_COUNT = re.compile(r"\s*([0-9]{1,10})")
_DURATION = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)\Z")
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]?)\Z")
_UNITS = ("", "K", "M", "G", "T", "P", "E")
"""Of 1024 each."""


@lru_cache(maxsize=512)
def parse_licenses(text: str) -> tuple[tuple[str, int], ...]:
    """``a,b:2`` into (name, count); as in slurmctld a count that is not a number is 1."""
    licences = []
    for item in filter(None, re.split(r"[,;|]", text)):
        name, _, count = item.partition(":")
        number = _LICENSE_COUNT.match(count)
        licences.append((name.strip(), int(number[1]) if number else 1))
    return tuple(licences)


def parse_duration(text: str) -> float:
    """``[DAYS-]HH:MM:SS`` into seconds; ``UNLIMITED`` and no value are inf. Raises SourceError."""
    if text in ("UNLIMITED", "INFINITE") or text in UNSET:
        return math.inf
    match = _DURATION.match(text)
    if match is None:
        raise SourceError(f"{text[:80]!r} is not a duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@lru_cache(maxsize=4096)
def parse_tres(text: str) -> tuple[Mapping[str, int], bool]:
    """``cpu=2K,mem=1.5G,gres/gpu:a100=2`` into (TRES -> amount, whether each is a number).

    ``mem`` is in MB. Above 2^70 bytes, which a user can ask for, Slurm writes ``mem=16?``.
    """
    amounts: dict[str, int] = {}
    complete = True
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        match = _AMOUNT.match(value)
        if match is None:
            complete = False
            continue
        plain, mega = ("M", 1024**2) if name == "mem" else ("", 1)
        units = 1024 ** _UNITS.index(match[2] or plain)
        amounts[name] = math.ceil(float(match[1]) * units / mega)
    return MappingProxyType(amounts), complete


def gpu_count(tres: Mapping[str, int]) -> int:
    """GPUs of TRES; typed entries count the same GPUs as the untyped one."""
    typed = sum(count for name, count in tres.items() if name.startswith("gres/gpu:"))
    return max(typed, tres.get("gres/gpu", 0))


@lru_cache(maxsize=8192)
def parse_indices(text: str) -> tuple[int, ...]:
    """``0-1,3`` into numbers. Raises ValueError."""
    indices: list[int] = []
    for item in filter(None, text.split(",")):
        first, _, last = item.partition("-")
        indices.extend(range(int(first), int(last or first) + 1))
    return tuple(indices)
