"""Grammar of a probe report's links, NICs and measured bandwidths."""

from __future__ import annotations

import re
from collections.abc import Collection

from slurm_gpu_aware.bounds import MAX_GBPS, MAX_GPUS_PER_NODE, quoted
from slurm_gpu_aware.model.hardware_graph import LINK_CLASS
from slurm_gpu_aware.model.interconnect import OPERATIONS, Collective, Nic, PairBandwidth
from slurm_gpu_aware.model.profile import Link
from slurm_gpu_aware.store.json_object import JsonObject

MAX_NICS = 64
MAX_COLLECTIVES = 4096
MAX_LATENCY_US = 1e9
MAX_MESSAGE_BYTES = 1 << 50
MIN_GBPS = 1e-6
_NIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")

Slots = Collection[int]
"""Slurm's indices of the report's GPUs."""


def parse_links(report: JsonObject, gpus: Slots) -> tuple[Link, ...]:
    """Links by pair. Raises ValueError or TypeError that names the field, as all functions here."""
    links: dict[tuple[int, int], Link] = {}
    for entry in report.objects("links"):
        pair = _pair(entry, gpus, links)
        links[pair] = Link(*pair, _class(entry), entry.number("gbps", most=MAX_GBPS))
    return tuple(links[pair] for pair in sorted(links))


def parse_nics(report: JsonObject, gpus: Slots) -> tuple[Nic, ...]:
    """NICs in the order of the report."""
    entries = report.objects("nics")
    if len(entries) > MAX_NICS:
        raise ValueError(f"nics: {len(entries)} NICs, more than {MAX_NICS}")
    names = [_matching(_NIC, entry, "name", "the name of a NIC") for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError("nics: a name occurs twice")
    return tuple(
        Nic(
            name,
            _matching(_PCI, entry, "pci", "a PCI address"),
            entry.maybe(entry.whole, "numa", -1),
            _paths_to_gpus(entry, gpus),
            _paths_to_nics(entry, {*names} - {name}),
        )
        for name, entry in zip(names, entries, strict=True)
    )


def parse_bandwidths(
    report: JsonObject, gpus: Slots, node: str, taken_at: float
) -> tuple[PairBandwidth, ...]:
    """Measured bandwidths by pair."""
    found: dict[tuple[int, int], PairBandwidth] = {}
    for entry in report.objects("bandwidths"):
        pair = _pair(entry, gpus, found)
        ab, ba, both = (
            entry.maybe(entry.number, key, MIN_GBPS, MAX_GBPS)
            for key in ("ab_gbps", "ba_gbps", "both_gbps")
        )
        if entry.raw["a"] != pair[0]:
            ab, ba = ba, ab
        latency_us = entry.maybe(entry.number, "latency_us", 0.0, MAX_LATENCY_US)
        found[pair] = PairBandwidth(node, *pair, taken_at, ab, ba, both, latency_us)
    return tuple(found[pair] for pair in sorted(found))


def parse_collectives(
    report: JsonObject, gpus: Slots, node: str, taken_at: float
) -> tuple[Collective, ...]:
    """Measured collectives in the order of the report."""
    entries = report.objects("collectives")
    if len(entries) > MAX_COLLECTIVES:
        raise ValueError(f"collectives: {len(entries)} of them, more than {MAX_COLLECTIVES}")
    return tuple(
        Collective(
            node,
            _set(entry, gpus),
            _operation(entry),
            taken_at,
            entry.number("gbps", MIN_GBPS, MAX_GBPS),
            entry.maybe(entry.whole, "size_bytes", 1, MAX_MESSAGE_BYTES),
        )
        for entry in entries
    )


def _pair(entry: JsonObject, gpus: Slots, seen: Collection[tuple[int, int]]) -> tuple[int, int]:
    a, b = sorted((entry.slot("a"), entry.slot("b")))
    if a == b or a not in gpus or b not in gpus:
        raise ValueError(f"{entry.where}: {a} and {b} are not two GPUs of this report")
    if (a, b) in seen:
        raise ValueError(f"{entry.where}: the pair {a}, {b} occurs twice")
    return a, b


def _class(entry: JsonObject) -> str:
    return _matching(LINK_CLASS, entry, "class", "NVn, XGMIn, PIX, PXB, PHB, NODE or SYS")


def _matching(pattern: re.Pattern[str], entry: JsonObject, key: str, what: str) -> str:
    value = entry.text(key)
    if not pattern.match(value):
        raise ValueError(f"{entry.at(key)}: {quoted(value)} is not {what}")
    return value


def _paths_to_gpus(entry: JsonObject, gpus: Slots) -> dict[int, str]:
    found: dict[int, str] = {}
    for path in entry.objects("gpus"):
        slot = path.slot("index")
        if slot not in gpus or slot in found:
            raise ValueError(
                f"{path.at('index')}: GPU {slot} is not in this report, or occurs twice"
            )
        found[slot] = _class(path)
    return found


def _paths_to_nics(entry: JsonObject, others: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in entry.objects("nics"):
        name = path.text("name")
        if name not in others or name in found:
            raise ValueError(
                f"{path.at('name')}: {quoted(name)} is not another NIC, or occurs twice"
            )
        found[name] = _class(path)
    return found


def _set(entry: JsonObject, gpus: Slots) -> tuple[int, ...]:
    value = entry.raw.get("gpus")
    if (
        not isinstance(value, list)
        or not 2 <= len(value) <= MAX_GPUS_PER_NODE
        or not all(type(slot) is int and slot in gpus for slot in value)
        or len(set(value)) < len(value)
    ):
        raise ValueError(
            f"{entry.at('gpus')}: {quoted(value)} is not two or more GPUs of this report"
        )
    return tuple(sorted(value))


def _operation(entry: JsonObject) -> str:
    operation = entry.text("operation")
    if operation not in OPERATIONS:
        raise ValueError(
            f"{entry.at('operation')}: {quoted(operation)} is not one of {', '.join(OPERATIONS)}"
        )
    return operation
