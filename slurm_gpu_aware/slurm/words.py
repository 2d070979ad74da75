"""Words of Slurm: node lists, durations, licences, indices, constraints, lists of slurm.conf."""

import math
import re
from collections.abc import Iterable, Set
from functools import lru_cache
from itertools import groupby, product

from slurm_gpu_aware.bounds import is_node_name
from slurm_gpu_aware.errors import SourceError

UNSET = frozenset({"(null)", "N/A", "None", "Unknown", "NONE", ""})
"""Slurm's spellings of no value."""

_LICENSE_COUNT = re.compile(r"\s*([0-9]{1,10})")
_DURATION = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)\Z")
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+\Z")
_PART = re.compile(r"\[([0-9,-]+)\]|([A-Za-z0-9._-]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")
_WORD = re.compile(r"(?:[^,\s\[]|\[[^\]]*\]?)+")
"""Item up to a comma or blank outside brackets, as Slurm splits: users type ``-w "n1 n2,"``.

It reads each character once, as a text can have tens of thousands of commas.
"""
_TOKEN = re.compile(r"\s*([()&|,]|[A-Za-z0-9_.:+=-]+)")
"""Of a constraint: operator, parenthesis or feature."""
_MOST = 65_536  # Names of one list, with repetitions; Slurm has no more nodes (MAX_SLURM_NODES).
_LONGEST_NAME = 255


@lru_cache(maxsize=512)  # a list can name all nodes of a site
def expand_hostlist(text: str) -> tuple[str, ...]:
    """``n[1-2,07],gpu-a`` -> n1, n2, n07, gpu-a: each name once; none for the empty list.

    Raises SourceError if the text is not a host list.
    """
    if not text:
        return ()
    if is_node_name(text):  # most running jobs have one node
        return (text,)
    names: dict[str, None] = {}
    total = count = 0
    for item in dict.fromkeys(_WORD.findall(text)):
        if not _ITEM.match(item) or len(re.sub(r"\[[^\]]*\]", "0", item)) > _LONGEST_NAME:
            raise SourceError(f"{text[:80]!r} is not a host list")
        parts: list[list[str]] = []
        for match in _PART.finditer(item):
            parts.append(_numbers(match[1], text) if match[1] is not None else [match[2]])
            count = math.prod(map(len, parts))
            _check_count(total + count, text)
        total += count
        names |= dict.fromkeys(map("".join, product(*parts)))
    return tuple(names)


def _check_count(count: int, text: str) -> None:
    if count > _MOST:
        raise SourceError(f"host list {text[:80]!r} names more than {_MOST} nodes")


def check_node_names(names: Iterable[str]) -> list[str]:
    """The names as a list. Raises ValueError if one cannot be a node's name."""
    checked = list(names)
    if wrong := [name for name in checked if not is_node_name(name)]:
        raise ValueError(f"{wrong[0]!r} is not a node name")
    return checked


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in dict.fromkeys(ranges.split(",")):
        match = _RANGE.match(item)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise SourceError(f"{text[:80]!r} is not a host list")
        first, last = match[1], match[2] or match[1]
        _check_count(len(numbers) + int(last) - int(first) + 1, text)
        width = len(first)
        numbers.extend(f"{number:0{width}d}" for number in range(int(first), int(last) + 1))
    return numbers


def hostlist(names: Iterable[str]) -> str:
    """Slurm's short form of node names: ``n1 n2 n3 x`` -> ``n[1-3],x``."""
    split = [re.match(r"(.*?)(\d*)\Z", n, re.DOTALL) for n in sorted(set(names), key=by_number)]
    parts = [(m.group(1), m.group(2)) for m in split if m]
    # Only zero-padded numbers have a fixed width; 9 and 10 belong to one range.
    padded = {(p, len(d)) for p, d in parts if len(d) > 1 and d.startswith("0")}
    grouped: dict[tuple[str, int], list[str]] = {}
    for prefix, digits in parts:
        width = len(digits) if not digits or (prefix, len(digits)) in padded else -1
        grouped.setdefault((prefix, width), []).append(digits)
    out: list[str] = []
    for (prefix, width), numbers in grouped.items():
        if len(numbers) == 1:
            out.append(prefix + numbers[0])
        else:
            out.append(f"{prefix}[{_ranges([int(n) for n in numbers], max(width, 0))}]")
    return ",".join(out)


def _ranges(numbers: list[int], padded: int) -> str:
    spans: list[str] = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        span = [f"{number:0{padded}d}" for _, number in run]
        spans.append(span[0] if len(span) == 1 else f"{span[0]}-{span[-1]}")
    return ",".join(spans)


def by_number(name: str) -> list[tuple[int, int, str]]:
    """Sort key of a name: ``n9`` before ``n10``."""
    parts = filter(None, re.split(r"(\d+)", name))
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


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


def words_of(setting: str | None) -> list[str]:
    """Entries of a list in Slurm's configuration; none without it."""
    return [word for word in (setting or "").split(",") if word and word != "(null)"]


def plugins_of(setting: str | None) -> list[str]:
    """Plugins of such a list; Slurm takes ``job_submit/lua`` for ``lua``."""
    return [word.rpartition("/")[2] for word in words_of(setting)]


def entry_name(word: str) -> str:
    """``gpuaware:5`` -> ``gpuaware``; Slurm takes ``job_submit/lua`` for ``lua``."""
    return re.split(r"[:*=]", word)[0].rpartition("/")[2]


@lru_cache(maxsize=8192)
def parse_indices(text: str) -> tuple[int, ...]:
    """``0-1,3`` into numbers. Raises ValueError."""
    indices: list[int] = []
    for item in filter(None, text.split(",")):
        first, _, last = item.partition("-")
        indices.extend(range(int(first), int(last or first) + 1))
    return tuple(indices)


def understood(expression: str | None) -> bool:
    """Whether `matches` can evaluate the expression."""
    try:
        matches(expression, frozenset())
    except ValueError:
        return False
    return True


def matches(expression: str | None, features: Set[str]) -> bool:
    """Whether ``--constraint`` allows a node with these features.

    Slurm reads ``&``, ``,`` and ``|`` from left to right without precedence. Raises ValueError for
    counts (``a*2``), brackets, negation and wrong expressions.
    """
    if not expression:
        return True
    tokens = _TOKEN.findall(expression)[::-1]
    value = _expression(tokens, features)
    if tokens or _TOKEN.sub("", expression):
        raise ValueError(f"constraint {expression!r} is not understood")
    return value


def _expression(tokens: list[str], features: Set[str]) -> bool:
    """Value of an expression, which is taken from the end of ``tokens``."""
    value = _operand(tokens, features)
    while tokens and tokens[-1] in "&|,":
        operator = tokens.pop()
        right = _operand(tokens, features)
        value = (value or right) if operator == "|" else (value and right)
    return value


def _operand(tokens: list[str], features: Set[str]) -> bool:
    word = tokens.pop() if tokens else ")"
    if word in "&|,)":
        raise ValueError("constraint ends too early")
    if word != "(":
        return word in features
    value = _expression(tokens, features)
    if not tokens or tokens.pop() != ")":
        raise ValueError("constraint lacks a closing parenthesis")
    return value
