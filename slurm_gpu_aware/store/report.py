"""Grammar of a probe report (schema ``gpu-aware-probe/2``).

A report comes from another host and is not trusted: every field is checked before the report is
stored, and the error names the first wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu_aware.bounds import MAX_MHZ, MAX_TIME_MS, MAX_TIME_S, MIN_TIME_MS, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.interconnect import Collective, Nic, PairBandwidth
from slurm_gpu_aware.model.profile import IDLE, LOADED, Fault, GpuRecord, Link, RunConditions
from slurm_gpu_aware.names import is_name, is_node_name
from slurm_gpu_aware.store.json_object import JsonObject
from slurm_gpu_aware.store.measurements import Run
from slurm_gpu_aware.store.report_links import (
    parse_bandwidths,
    parse_collectives,
    parse_links,
    parse_nics,
)

SCHEMA = "gpu-aware-probe/2"
_VERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}\Z")
MAX_RUNS = 50_000
"""Runs of one report: 64 GPUs, 3 classes, 20 clocks, 10 runs are 38,400."""
MAX_CLASSES = 32
MAX_CLOCKS = 1_024
MAX_FAULTS = 256
"""Faults of a report that are kept; of a broken node the first ones tell why."""
_THROTTLE = re.compile(r"([a-z_]{1,40}( [a-z_]{1,40}){0,15})?\Z")


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
    nics: tuple[Nic, ...]
    runs: tuple[Run, ...]
    link_backend: str | None
    """What measured the bandwidths; None: they were not measured."""
    bandwidths: tuple[PairBandwidth, ...]
    collectives: tuple[Collective, ...]
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
        return _report(JsonObject(raw))
    except (ValueError, TypeError) as exc:
        raise SourceError(f"{where}: {exc}") from None


def _report(raw: JsonObject) -> ProbeReport:
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
        links=parse_links(raw, gpus),
        nics=parse_nics(raw, gpus),
        link_backend=raw.maybe(raw.text, "link_backend"),
        bandwidths=parse_bandwidths(raw, gpus, node, taken_at),
        collectives=parse_collectives(raw, gpus, node, taken_at),
        runs=_runs(node, taken_at, raw, gpus),
        faults=tuple(
            Fault(entry.maybe(entry.slot, "index"), entry.text("call"), entry.text("error"))
            for entry in raw.objects("errors")[:MAX_FAULTS]
        ),
    )


def _gpu(entry: JsonObject) -> GpuRecord:
    clocks = entry.raw.get("clocks_mhz") or []
    sound = isinstance(clocks, list) and len(clocks) <= MAX_CLOCKS
    if not sound or not all(type(c) is int and 0 < c <= MAX_MHZ for c in clocks):
        raise ValueError(f"{entry.at('clocks_mhz')}: expected a list of MHz, not {quoted(clocks)}")
    return GpuRecord(
        uuid=entry.maybe(entry.text, "uuid"),
        name=entry.maybe(entry.text, "name"),
        model=_model(entry),
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
        nvlink_version=_nvlink_version(entry),
        nvlinks=entry.maybe(entry.whole, "nvlinks", 0, 99),
        nvswitch_links=entry.maybe(entry.whole, "nvswitch_links", 0, 99),
    )


def _model(entry: JsonObject) -> str | None:
    model = entry.maybe(entry.text, "model")
    return None if model is None else check_name("model", model)


def _nvlink_version(entry: JsonObject) -> str | None:
    version = entry.maybe(entry.text, "nvlink_version")
    if version is not None and not _VERSION.match(version):
        raise ValueError(f"{entry.at('nvlink_version')}: {quoted(version)} is not a version")
    return version


def _runs(
    node: str, taken_at: float, raw: JsonObject, gpus: Mapping[int, GpuRecord]
) -> tuple[Run, ...]:
    entries = raw.objects("timings")
    if len(entries) > MAX_RUNS:
        raise ValueError(f"timings: {len(entries)} runs, more than {MAX_RUNS}")
    runs = tuple(_run(node, taken_at, entry, gpus) for entry in entries)
    classes = {run.app_class for run in runs}
    if len(classes) > MAX_CLASSES:
        raise ValueError(f"timings: {len(classes)} classes, more than {MAX_CLASSES}")
    return runs


def _run(node: str, taken_at: float, entry: JsonObject, gpus: Mapping[int, GpuRecord]) -> Run:
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


def _conditions(entry: JsonObject) -> RunConditions:
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
