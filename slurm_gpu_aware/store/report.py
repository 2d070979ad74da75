"""The strict grammar of a probe's report (schema ``gpu-aware-probe/1``).

A report comes from another host, so nothing in it is trusted: every field is checked before
anything is stored, and the first wrong one is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu_aware.bounds import (
    MAX_GBPS,
    MAX_GPUS_PER_NODE,
    MAX_MHZ,
    MAX_TIME_MS,
    MAX_TIME_S,
    check_time_ms,
    quoted,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.profile import Fault, GpuRecord, Link
from slurm_gpu_aware.names import is_name, is_node_name

__all__ = ["ProbeReport", "Timing", "check_name", "parse_report"]

SCHEMA = "gpu-aware-probe/1"
_LINK = re.compile(r"(NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS)\Z")
_UNSTORABLE = re.compile("[\\x00\ud800-\udfff]")  # NUL and lone surrogates are not UTF-8 text
MAX_SLOT = MAX_GPUS_PER_NODE - 1
_MOST = 1e9
"""Of watts, degrees and shares."""


@dataclass(frozen=True)
class Timing:
    """One measured time of a GPU for a class."""

    slot: int
    app_class: str
    value_ms: float
    repeats: int | None = None
    spread: float | None = None
    """Relative spread over the repeats."""


@dataclass(frozen=True)
class ProbeReport:
    """A checked report of one node."""

    node: str
    taken_at: float
    driver: str | None
    backend: str | None
    gpus: Mapping[int, GpuRecord]
    """Slot (Slurm's IDX) -> record."""
    links: tuple[Link, ...]
    timings: tuple[Timing, ...]
    faults: tuple[Fault, ...]


def check_name(kind: str, value: str) -> str:
    """Return a node, class or model name (``kind``: one of these words) or raise ValueError."""
    if not (is_name(value) if kind == "class" else is_node_name(value)):
        raise ValueError(f"{quoted(value)} is not a {kind} name")
    return value


def parse_report(raw: Mapping[str, Any]) -> ProbeReport:
    """Check a report and return it. Raises SourceError that names the node and the wrong field."""
    node = raw.get("node") if isinstance(raw, Mapping) else None
    where = f"probe report of {node}" if isinstance(node, str) and len(node) < 256 else "report"
    try:
        return _report(raw)
    except (KeyError, ValueError, TypeError) as exc:
        reason = f"{exc.args[0]} is missing" if isinstance(exc, KeyError) else str(exc)
        raise SourceError(f"{where}: {reason}") from None


def _report(raw: Mapping[str, Any]) -> ProbeReport:
    if not isinstance(raw, Mapping):
        raise TypeError("expected a JSON object")
    if raw.get("schema") != SCHEMA:
        raise ValueError(f"schema is {quoted(raw.get('schema'))}, expected {SCHEMA!r}")
    gpus: dict[int, GpuRecord] = {}
    for i, entry in enumerate(_entries(raw, "gpus")):
        where = f"gpus[{i}]"
        slot = _slot(entry, "index", where)
        if slot in gpus:
            raise ValueError(f"{where}.index: GPU {slot} occurs twice")
        gpus[slot] = _gpu(entry, where)
    return ProbeReport(
        node=check_name("node", _text(raw, "node", "", required=True) or ""),
        taken_at=_number(raw, "taken_at", "", least=0.0, most=MAX_TIME_S),
        driver=_text(raw, "driver", ""),
        backend=_text(raw, "backend", ""),
        gpus=gpus,
        links=_links(raw, gpus),
        timings=_timings(raw, gpus),
        faults=tuple(_fault(e, f"errors[{i}]") for i, e in enumerate(_entries(raw, "errors"))),
    )


def _gpu(entry: Mapping[str, Any], where: str) -> GpuRecord:
    clocks = entry.get("clocks_mhz") or []
    if not isinstance(clocks, list) or not all(type(c) is int and 0 < c <= MAX_MHZ for c in clocks):
        raise ValueError(f"{where}.clocks_mhz: expected a list of MHz, not {quoted(clocks)}")
    return GpuRecord(
        uuid=_text(entry, "uuid", where),
        name=_text(entry, "name", where),
        model=_text(entry, "model", where),
        pci=_text(entry, "pci", where),
        numa=_whole(entry, "numa", where, least=-1),
        cpus=_text(entry, "cpus", where),
        memory_mb=_whole(entry, "memory_mb", where),
        clocks_mhz=tuple(sorted(clocks, reverse=True)),
        max_clock_mhz=_whole(entry, "max_clock_mhz", where),
        default_clock_mhz=_whole(entry, "default_clock_mhz", where),
        power_limit_w=_maybe_number(entry, "power_limit_w", where),
        temperature_c=_maybe_number(entry, "temperature_c", where, least=-273.0),
    )


def _links(raw: Mapping[str, Any], gpus: Mapping[int, GpuRecord]) -> tuple[Link, ...]:
    found: dict[tuple[int, int], Link] = {}
    for i, entry in enumerate(_entries(raw, "links")):
        where = f"links[{i}]"
        a, b = sorted((_slot(entry, "a", where), _slot(entry, "b", where)))
        if a == b or a not in gpus or b not in gpus:
            raise ValueError(f"{where}: {a} and {b} are not two GPUs of this report")
        if (a, b) in found:
            raise ValueError(f"{where}: the pair {a}, {b} occurs twice")
        kind = _text(entry, "class", where, required=True) or ""
        if not _LINK.match(kind):
            raise ValueError(
                f"{where}.class: {quoted(kind)} is not NVn, PIX, PXB, PHB, NODE or SYS"
            )
        found[a, b] = Link(a, b, kind, _number(entry, "gbps", where, least=0.0, most=MAX_GBPS))
    return tuple(found[pair] for pair in sorted(found))


def _timings(raw: Mapping[str, Any], gpus: Mapping[int, GpuRecord]) -> tuple[Timing, ...]:
    timings = []
    for i, entry in enumerate(_entries(raw, "timings")):
        where = f"timings[{i}]"
        slot = _slot(entry, "index", where)
        if slot not in gpus:
            raise ValueError(f"{where}.index: GPU {slot} is not in this report")
        try:
            value_ms = check_time_ms(_number(entry, "value_ms", where, least=0.0, most=MAX_TIME_MS))
        except ValueError as exc:
            raise ValueError(f"{where}: {exc}") from None
        timings.append(
            Timing(
                slot=slot,
                app_class=check_name("class", _text(entry, "class", where, required=True) or ""),
                value_ms=value_ms,
                repeats=_whole(entry, "repeats", where, least=1),
                spread=_maybe_number(entry, "spread", where),
            )
        )
    return tuple(timings)


def _fault(entry: Mapping[str, Any], where: str) -> Fault:
    slot = None if entry.get("index") is None else _slot(entry, "index", where)
    return Fault(
        slot,
        _text(entry, "call", where, required=True) or "",
        _text(entry, "error", where, required=True) or "",
    )


def _entries(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = raw.get(key, [])
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise TypeError(f"{key}: expected a list of objects")
    return value


def _at(key: str, where: str) -> str:
    return f"{where}.{key}" if where else key


def _text(raw: Mapping[str, Any], key: str, where: str, *, required: bool = False) -> str | None:
    value = raw.get(key)
    if value is None and not required:
        return None
    if not isinstance(value, str) or len(value) > 4096 or _UNSTORABLE.search(value):
        raise TypeError(f"{_at(key, where)}: expected a text, not {quoted(value)}")
    return value


def _whole(raw: Mapping[str, Any], key: str, where: str, *, least: int = 0) -> int | None:
    value = raw.get(key)
    if value is None:
        return None
    if type(value) is not int or not least <= value < 1 << 53:
        raise TypeError(f"{_at(key, where)}: expected a whole number, not {quoted(value)}")
    return value


def _slot(raw: Mapping[str, Any], key: str, where: str) -> int:
    value = _whole(raw, key, where)
    if value is None or value > MAX_SLOT:
        raise ValueError(f"{_at(key, where)}: expected a GPU index, not {quoted(value)}")
    return value


def _number(
    raw: Mapping[str, Any], key: str, where: str, *, least: float, most: float = _MOST
) -> float:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{_at(key, where)}: expected a number, not {quoted(value)}")
    if not least <= value <= most:  # nor is NaN
        raise ValueError(f"{_at(key, where)}: {quoted(value)} is out of range")
    return float(value)


def _maybe_number(
    raw: Mapping[str, Any], key: str, where: str, *, least: float = 0.0
) -> float | None:
    return None if raw.get(key) is None else _number(raw, key, where, least=least)
