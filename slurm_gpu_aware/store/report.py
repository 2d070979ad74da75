"""Probe reports, checked: `report_grammar` field by field, and here what one part says of another.

A report comes from another host and is not trusted. The error names the first wrong field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import Collective, Nic, PairBandwidth
from slurm_gpu_aware.model.profile import Fault, GpuRecord, Link, RunConditions
from slurm_gpu_aware.names import is_name, is_node_name
from slurm_gpu_aware.store import report_grammar as grammar
from slurm_gpu_aware.store.measurements import Run

SCHEMA = grammar.SCHEMA
MAX_CLASSES = 32
MAX_FAULTS = 256
"""Faults of a report that are kept; of a broken node the first ones tell why."""
_GPU_FIELDS = [field.name for field in fields(GpuRecord)]

P = TypeVar("P", bound=grammar.Pair)
Slots = Collection[int]
"""Slurm's indices of the report's GPUs."""


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
    where = "report"
    if isinstance(node, str) and is_node_name(node):
        where = f"probe report of {node}"
    try:
        return _checked(records.read(raw, grammar.Report))
    except ValueError as exc:
        raise SourceError(f"{where}: {exc}") from None


def _checked(raw: grammar.Report) -> ProbeReport:
    gpus: dict[int, GpuRecord] = {}
    for i, gpu in enumerate(raw.gpus):
        _check(gpu.index not in gpus, f"gpus[{i}].index: GPU {gpu.index} occurs twice")
        values = {name: getattr(gpu, name) for name in _GPU_FIELDS}
        values["clocks_mhz"] = tuple(sorted(gpu.clocks_mhz or (), reverse=True))
        gpus[gpu.index] = GpuRecord(**values)
    links = _pairs("links", raw.links, gpus)
    return ProbeReport(
        node=raw.node,
        taken_at=raw.taken_at,
        driver=raw.driver,
        cuda=raw.cuda,
        backend=raw.backend,
        gpus=gpus,
        links=tuple(Link(*pair, one.link_class, one.gbps) for pair, one in links),
        nics=tuple(_nics(raw.nics, gpus)),
        link_backend=raw.link_backend,
        bandwidths=tuple(_bandwidths(raw, gpus)),
        collectives=tuple(_collectives(raw, gpus)),
        runs=tuple(_runs(raw, gpus)),
        faults=tuple(Fault(one.index, one.call, one.error) for one in raw.errors[:MAX_FAULTS]),
    )


def _pairs(name: str, entries: Sequence[P], gpus: Slots) -> list[tuple[tuple[int, int], P]]:
    """((lower slot, higher slot), entry), ascending."""
    found: dict[tuple[int, int], P] = {}
    for i, entry in enumerate(entries):
        a, b = sorted((entry.a, entry.b))
        sound = a != b and a in gpus and b in gpus
        _check(sound, f"{name}[{i}]: {a} and {b} are not two GPUs of this report")
        _check((a, b) not in found, f"{name}[{i}]: the pair {a}, {b} occurs twice")
        found[a, b] = entry
    return sorted(found.items())


def _bandwidths(raw: grammar.Report, gpus: Slots) -> Iterator[PairBandwidth]:
    for (a, b), one in _pairs("bandwidths", raw.bandwidths, gpus):
        ab, ba = one.ab_gbps, one.ba_gbps
        ab, ba = (ab, ba) if one.a == a else (ba, ab)
        yield PairBandwidth(raw.node, a, b, raw.taken_at, ab, ba, one.both_gbps, one.latency_us)


def _collectives(raw: grammar.Report, gpus: Slots) -> Iterator[Collective]:
    for i, one in enumerate(raw.collectives):
        slots = tuple(sorted(set(one.gpus)))
        sound = len(slots) == len(one.gpus) and all(slot in gpus for slot in slots)
        wrong = f"{quoted(one.gpus)} is not two or more GPUs of this report"
        _check(sound, f"collectives[{i}].gpus: {wrong}")
        yield Collective(raw.node, slots, one.operation, raw.taken_at, one.gbps, one.size_bytes)


def _nics(entries: Sequence[grammar.ReportedNic], gpus: Slots) -> Iterator[Nic]:
    names = {entry.name for entry in entries}
    _check(len(names) == len(entries), "nics: a name occurs twice")
    for i, entry in enumerate(entries):
        to_gpus: dict[int, str] = {}
        for j, to_gpu in enumerate(entry.gpus):
            sound = to_gpu.index in gpus and to_gpu.index not in to_gpus
            wrong = f"GPU {to_gpu.index} is not in this report, or occurs twice"
            _check(sound, f"nics[{i}].gpus[{j}].index: {wrong}")
            to_gpus[to_gpu.index] = to_gpu.link_class
        to_nics: dict[str, str] = {}
        for j, to_nic in enumerate(entry.nics):
            sound = to_nic.name in names - {entry.name} and to_nic.name not in to_nics
            wrong = f"{quoted(to_nic.name)} is not another NIC, or occurs twice"
            _check(sound, f"nics[{i}].nics[{j}].name: {wrong}")
            to_nics[to_nic.name] = to_nic.link_class
        yield Nic(entry.name, entry.pci, entry.numa, to_gpus, to_nics)


def _runs(raw: grammar.Report, gpus: Slots) -> Iterator[Run]:
    classes = {one.app_class for one in raw.timings}
    _check(len(classes) <= MAX_CLASSES, f"timings: {len(classes)} classes, more than {MAX_CLASSES}")
    for i, one in enumerate(raw.timings):
        _check(one.index in gpus, f"timings[{i}].index: GPU {one.index} is not in this report")
        values = {name: getattr(one, name) for name in RunConditions._fields}
        conditions = RunConditions(**{**values, "clock_mhz": one.clock_mhz or 0})
        yield Run(raw.node, one.index, one.app_class, raw.taken_at, one.value_ms, conditions)


def _check(holds: bool, wrong: str) -> None:
    if not holds:
        raise ValueError(wrong)
