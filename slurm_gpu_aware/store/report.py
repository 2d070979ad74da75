"""Grammar of a probe report (schema ``gpu-aware-probe/2``).

A report comes from another host and is not trusted: every field is checked before the report is
stored, and the error names the first wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from slurm_gpu_aware.bounds import (
    MAX_GBPS,
    MAX_GPUS_PER_NODE,
    MAX_MHZ,
    MAX_TIME_MS,
    MAX_TIME_S,
    MIN_TIME_MS,
    quoted,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.profile import IDLE, LOADED, Fault, GpuRecord, Link, RunConditions
from slurm_gpu_aware.names import is_name, is_node_name
from slurm_gpu_aware.store.measurements import Run

__all__ = ["ProbeReport", "check_name", "parse_report"]

SCHEMA = "gpu-aware-probe/2"
_LINK = re.compile(r"(NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS)\Z")
_UNSTORABLE = re.compile("[\\x00\ud800-\udfff]")  # NUL and lone surrogates are not UTF-8 text
_THROTTLE = re.compile(r"([a-z_]{1,40}( [a-z_]{1,40}){0,15})?\Z")
_MOST = 1e9
"""Limit of watts, degrees and shares."""

T = TypeVar("T")


@dataclass(frozen=True)
class ProbeReport:
    """A checked report of one node."""

    node: str
    taken_at: float
    driver: str | None
    cuda: str | None
    """Newest CUDA version that the driver supports."""
    backend: str | None
    gpus: Mapping[int, GpuRecord]
    """Slot (Slurm's IDX) -> record."""
    links: tuple[Link, ...]
    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]


def check_name(kind: str, value: str) -> str:
    """Return the name; raise ValueError unless it is valid. ``kind``: node, class or model."""
    if not (is_name(value) if kind == "class" else is_node_name(value)):
        raise ValueError(f"{quoted(value)} is not a {kind} name")
    return value


def parse_report(raw: object) -> ProbeReport:
    """Check and return a report. Raises SourceError that names the node and the wrong field."""
    node = raw.get("node") if isinstance(raw, Mapping) else None
    where = f"probe report of {node}" if isinstance(node, str) and len(node) < 256 else "report"
    try:
        if not isinstance(raw, Mapping):
            raise TypeError("expected a JSON object")
        return _report(_Object(raw))
    except (ValueError, TypeError) as exc:
        raise SourceError(f"{where}: {exc}") from None


class _Object:
    """A JSON object of the report. Methods raise ValueError or TypeError that names the field."""

    def __init__(self, raw: Mapping[str, Any], where: str = "") -> None:
        self.raw, self.where = raw, where

    def at(self, key: str) -> str:
        """The path of a field."""
        return f"{self.where}.{key}" if self.where else key

    def objects(self, key: str) -> list[_Object]:
        value = self.raw.get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
            raise TypeError(f"{key}: expected a list of objects")
        return [_Object(entry, f"{key}[{i}]") for i, entry in enumerate(value)]

    def text(self, key: str) -> str:
        value = self.raw.get(key)
        if not isinstance(value, str) or len(value) > 4096 or _UNSTORABLE.search(value):
            raise TypeError(f"{self.at(key)}: expected a text, not {quoted(value)}")
        return value

    def whole(
        self, key: str, least: int = 0, most: int = 1 << 53, what: str = "a whole number"
    ) -> int:
        value = self.raw.get(key)
        if type(value) is not int or not least <= value <= most:
            raise TypeError(f"{self.at(key)}: expected {what}, not {quoted(value)}")
        return value

    def slot(self, key: str) -> int:
        return self.whole(key, most=MAX_GPUS_PER_NODE - 1, what="a GPU index")

    def number(self, key: str, least: float = 0.0, most: float = _MOST) -> float:
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{self.at(key)}: expected a number, not {quoted(value)}")
        if not least <= value <= most:  # NaN is not either
            raise ValueError(f"{self.at(key)}: {quoted(value)} is not {least:g} to {most:g}")
        return float(value)

    def maybe(self, read: Callable[..., T], key: str, *bounds: float) -> T | None:
        """The value that the method ``read`` returns; None: the field is missing or null."""
        return None if self.raw.get(key) is None else read(key, *bounds)


def _report(raw: _Object) -> ProbeReport:
    if raw.raw.get("schema") != SCHEMA:
        raise ValueError(f"schema is {quoted(raw.raw.get('schema'))}, expected {SCHEMA!r}")
    gpus: dict[int, GpuRecord] = {}
    for entry in raw.objects("gpus"):
        slot = entry.slot("index")
        if slot in gpus:
            raise ValueError(f"{entry.at('index')}: GPU {slot} occurs twice")
        gpus[slot] = _gpu(entry)
    node = check_name("node", raw.text("node"))
    taken_at = raw.number("taken_at", most=MAX_TIME_S)
    return ProbeReport(
        node=node,
        taken_at=taken_at,
        driver=raw.maybe(raw.text, "driver"),
        cuda=raw.maybe(raw.text, "cuda"),
        backend=raw.maybe(raw.text, "backend"),
        gpus=gpus,
        links=_links(raw, gpus),
        runs=tuple(_run(node, taken_at, entry, gpus) for entry in raw.objects("timings")),
        faults=tuple(
            Fault(entry.maybe(entry.slot, "index"), entry.text("call"), entry.text("error"))
            for entry in raw.objects("errors")
        ),
    )


def _gpu(entry: _Object) -> GpuRecord:
    clocks = entry.raw.get("clocks_mhz") or []
    if not isinstance(clocks, list) or not all(type(c) is int and 0 < c <= MAX_MHZ for c in clocks):
        raise ValueError(f"{entry.at('clocks_mhz')}: expected a list of MHz, not {quoted(clocks)}")
    return GpuRecord(
        uuid=entry.maybe(entry.text, "uuid"),
        name=entry.maybe(entry.text, "name"),
        model=entry.maybe(entry.text, "model"),
        pci=entry.maybe(entry.text, "pci"),
        numa=entry.maybe(entry.whole, "numa", -1),
        cpus=entry.maybe(entry.text, "cpus"),
        memory_mb=entry.maybe(entry.whole, "memory_mb"),
        clocks_mhz=tuple(sorted(clocks, reverse=True)),
        max_clock_mhz=entry.maybe(entry.whole, "max_clock_mhz"),
        default_clock_mhz=entry.maybe(entry.whole, "default_clock_mhz"),
        power_limit_w=entry.maybe(entry.number, "power_limit_w"),
        temperature_c=entry.maybe(entry.number, "temperature_c", -273.0),
        ecc_corrected=entry.maybe(entry.whole, "ecc_corrected"),
        ecc_uncorrected=entry.maybe(entry.whole, "ecc_uncorrected"),
    )


def _links(raw: _Object, gpus: Mapping[int, GpuRecord]) -> tuple[Link, ...]:
    links: dict[tuple[int, int], Link] = {}
    for entry in raw.objects("links"):
        a, b = sorted((entry.slot("a"), entry.slot("b")))
        if a == b or a not in gpus or b not in gpus:
            raise ValueError(f"{entry.where}: {a} and {b} are not two GPUs of this report")
        if (a, b) in links:
            raise ValueError(f"{entry.where}: the pair {a}, {b} occurs twice")
        kind = entry.text("class")
        if not _LINK.match(kind):
            raise ValueError(
                f"{entry.at('class')}: {quoted(kind)} is not NVn, PIX, PXB, PHB, NODE or SYS"
            )
        links[a, b] = Link(a, b, kind, entry.number("gbps", most=MAX_GBPS))
    return tuple(links[pair] for pair in sorted(links))


def _run(node: str, taken_at: float, entry: _Object, gpus: Mapping[int, GpuRecord]) -> Run:
    slot = entry.slot("index")
    if slot not in gpus:
        raise ValueError(f"{entry.at('index')}: GPU {slot} is not in this report")
    return Run(
        node,
        slot,
        check_name("class", entry.text("class")),
        taken_at,
        entry.number("value_ms", MIN_TIME_MS, MAX_TIME_MS),
        _conditions(entry),
    )


def _conditions(entry: _Object) -> RunConditions:
    neighbours = entry.raw.get("neighbours", IDLE)
    if neighbours not in (IDLE, LOADED):
        raise ValueError(f"{entry.at('neighbours')}: {quoted(neighbours)} is not idle or loaded")
    throttle = entry.raw.get("throttle", "")
    if not isinstance(throttle, str) or not _THROTTLE.match(throttle):
        raise ValueError(f"{entry.at('throttle')}: {quoted(throttle)} is not a list of reasons")
    return RunConditions(
        neighbours=neighbours,
        clock_mhz=entry.maybe(entry.whole, "clock_mhz", 0, MAX_MHZ) or 0,
        samples=entry.maybe(entry.whole, "samples", 1),
        spread=entry.maybe(entry.number, "spread"),
        sm_mhz=entry.maybe(entry.number, "sm_mhz"),
        memory_mhz=entry.maybe(entry.number, "memory_mhz"),
        power_w=entry.maybe(entry.number, "power_w"),
        energy_j=entry.maybe(entry.number, "energy_j"),
        temperature_c=entry.maybe(entry.number, "temperature_c", -273.0),
        throttle=throttle,
    )
