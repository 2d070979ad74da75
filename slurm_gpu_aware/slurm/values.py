"""Parsers of values in Slurm's texts: durations, amounts, licences, lists of indices."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from slurm_gpu_aware.errors import SourceError

__all__ = [
    "UNSET",
    "parse_count",
    "parse_duration",
    "parse_indices",
    "parse_licenses",
    "parse_memory",
]

UNSET = frozenset({"(null)", "N/A", "None", "Unknown", "NONE", ""})
"""Slurm's spellings of no value."""

_LICENSE_COUNT = re.compile(r"\s*([0-9]{1,10})")
_DURATION = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)\Z")
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]?)\Z")
_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3, "E": 1024**4, "": 1}
_ONES = {unit: 1024**power for power, unit in enumerate(["", *"KMGTPE"])}


@lru_cache(maxsize=512)
def parse_licenses(text: str) -> tuple[tuple[str, int], ...]:
    """``a,b:2`` into (name, count); as in slurmctld a count that is not a number is 1."""
    licences = []
    for item in filter(None, re.split(r"[,;|]", text)):
        name, _, count = item.partition(":")
        number = _LICENSE_COUNT.match(count)
        licences.append((name.strip(), int(number[1]) if number else 1))
    return tuple(licences)


@lru_cache(maxsize=8192)
def parse_duration(text: str) -> float:
    """``[DAYS-]HH:MM:SS`` into seconds; ``UNLIMITED`` and no value are inf. Raises SourceError."""
    if text in ("UNLIMITED", "Partition_Limit", "INFINITE") or text in UNSET:
        return math.inf
    match = _DURATION.match(text)
    if match is None:
        raise SourceError(f"{text[:80]!r} is not a duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@lru_cache(maxsize=8192)
def parse_memory(text: str) -> int:
    """``8000``, ``100M``, ``1.5G`` into MB. Raises SourceError."""
    match = _AMOUNT.match(text)
    if match is None:
        raise SourceError(f"{text[:80]!r} is not an amount of memory")
    return math.ceil(float(match[1]) * _MB[match[2]])


@lru_cache(maxsize=8192)
def parse_count(text: str) -> int:
    """``2048``, or ``2K`` as Slurm writes it, into a number. Raises SourceError."""
    match = _AMOUNT.match(text)
    if match is None:
        raise SourceError(f"{text[:80]!r} is not a count")
    return math.ceil(float(match[1]) * _ONES[match[2]]) if match[2] else int(float(match[1]))


@lru_cache(maxsize=8192)
def parse_indices(text: str) -> tuple[int, ...]:
    """``0-1,3`` into numbers. Raises ValueError."""
    indices: list[int] = []
    for item in filter(None, text.split(",")):
        first, _, last = item.partition("-")
        indices.extend(range(int(first), int(last or first) + 1))
    return tuple(indices)
