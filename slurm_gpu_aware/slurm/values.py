"""Parsers of values in Slurm's texts: durations, licences, indices, TRES lists, GRES lines."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.names import slot_of

UNSET = frozenset({"(null)", "N/A", "None", "Unknown", "NONE", ""})
"""Slurm's spellings of no value."""

_LICENSE_COUNT = re.compile(r"\s*([0-9]{1,10})")
_DURATION = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)\Z")
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]?)\Z")
_UNITS = ("", "K", "M", "G", "T", "P", "E")
"""Of 1024 each."""
_ITEMS = re.compile(r",(?![^()]*\))")
_GPU = re.compile(
    r"gpu(?::(?!no_consume[:(]|[0-9]+[KMGTP]?(?:\(|\Z))([A-Za-z0-9._+-]+))?"
    r"(?::no_consume)?(?::([0-9]+))?"
    r"(?:\((?:IDX:([0-9,-]*|N/A)|S:([0-9,-]+)|CNT:([0-9]+))\))?\Z"
)
_SHARDS = re.compile(
    r"shard(?::([A-Za-z][A-Za-z0-9._+-]*))?:([0-9]+)(?:\(([-0-9/,]+|S:[0-9,-]+)\))?\Z"
)
_SLICE = re.compile(
    r"(?:(?<![0-9a-z])|(?<=mig))[1-9][0-9]?g[._]?[0-9]+gb(?![0-9a-z])|(?<![a-z])mig(?![a-z])",
    re.IGNORECASE,
)


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


@lru_cache(maxsize=16384)
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


@dataclass(frozen=True)
class GresItem:
    """Of a GRES line: GPUs of one type, or a GRES that shares GPUs (``mps``, ``shard``)."""

    name: str
    kind: str | None
    """Type; None: untyped."""
    count: int
    """Number of GPUs or shards; 0 for MPS."""
    indices: tuple[int, ...] | None
    """Slurm's GPU indices; None: not in the entry."""
    sockets: tuple[int, ...] | None = None
    """Sockets that the GPUs are bound to (``S:0-1``); None: not in the entry."""
    parts: tuple[tuple[int, int], ...] = ()
    """Shards in use and all shards of each GPU (``2/8,0/8``), in the order of the node's GPUs."""


def is_mig(kind: str | None) -> bool:
    """Whether a GPU's GRES type is a MIG profile: ``a100_3g.20gb``, ``1g10gb``, ``mig-a``, ..."""
    return kind is not None and _SLICE.search(kind) is not None


@lru_cache(maxsize=8192)  # thousands of nodes and jobs show the same few lines
def parse_gres(text: str) -> tuple[GresItem, ...]:
    """Entries of GPUs and of the GRES that share them; those of other GRES are skipped.

    A line holds all that a site has defined: ``gpu:a100:4(S:0-1),shard:32``, ``tmp:512G``,
    ``VramPerGpu:no_consume:48G``, ``gpu:g0:1(IDX:0),shard:0(0/8,-/8)``, ``gpu:a100(CNT:2)``, or
    ``(null)``. Slurm writes ``gpu:(null):1`` for untyped GPUs beside shards. Raises SourceError for
    an invalid entry of GPUs.
    """
    if text in UNSET:
        return ()
    items: list[GresItem] = []
    for item in _ITEMS.split(text.replace(":(null):", ":")):
        name = re.split(r"[:(]", item, maxsplit=1)[0]
        if name == "shard":
            items.append(_shards(item))
        elif name == "mps":
            items.append(GresItem(name, None, 0, None))
        elif name == "gpu":
            items.append(_gpus(item))
    return tuple(items)


def _gpus(item: str) -> GresItem:
    match = _GPU.match(item)
    if match is None:
        raise SourceError(f"{item[:80]!r} is not a GRES of GPUs; expected gpu[:type]:count")
    kind, number, listed, bound, held = match.groups()
    count = int(number or held or 1)
    slot = slot_of(kind)
    indices = None
    if listed is not None:
        indices = parse_indices(listed) if listed != "N/A" else ()
        if slot is not None and len(indices) == 1:
            # IDX counts the GPUs that Slurm sees; on a node that lacks one, only the type is right.
            indices = (slot,)
    elif held is not None and slot is not None and count == 1:
        indices = (slot,)
    sockets = parse_indices(bound) if bound is not None else None
    return GresItem("gpu", kind, count, indices, sockets)


def _shards(item: str) -> GresItem:
    """Shards; without ``parts`` if the entry does not say how many each GPU has, or is not read."""
    match = _SHARDS.match(item)
    if match is None:
        return GresItem("shard", None, 0, None)
    kind, number, found = match.groups()
    parts: list[tuple[int, int]] = []
    for part in (found or "").split(","):
        used, _, total = part.partition("/")
        if not total.isdecimal() or not (used.isdecimal() or used == "-"):  # "-": a whole GPU
            return GresItem("shard", kind, int(number), None)
        parts.append((0 if used == "-" else int(used), int(total)))
    return GresItem("shard", kind, int(number), None, parts=tuple(parts))
