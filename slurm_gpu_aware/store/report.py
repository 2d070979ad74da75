"""Probe reports (schema ``gpu-aware-probe/2``): their grammar, and what one part says of another.

A report comes from another host and is not trusted. The error names the first wrong field. A field
that is missing or null is not known; a report may have fields that are not named here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, field, structs

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import (
    MAX_GBPS,
    MAX_GPU_W,
    MAX_GPUS_PER_NODE,
    MAX_MHZ,
    MAX_TIME_MS,
    MAX_TIME_S,
    MIN_GBPS,
    MIN_TIME_MS,
    NAME,
    NODE_NAME,
    is_name,
    is_node_name,
    quoted,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import (
    LINK_CLASS,
    OPERATIONS,
    Collective,
    Nic,
    PairBandwidth,
)
from slurm_gpu_aware.model.profile import (
    IDLE,
    LOADED,
    Fault,
    GpuHealth,
    GpuRecord,
    Link,
    RunConditions,
)
from slurm_gpu_aware.records import Text, number, text, whole, words
from slurm_gpu_aware.store.measurements import Run

SCHEMA = "gpu-aware-probe/2"
MAX_RUNS = 50_000  # Runs of one report: 64 GPUs, 3 classes, 20 clocks, 10 runs are 38,400.
MAX_CLOCKS = 1_024
MAX_NICS = 64
MAX_COLLECTIVES = 4_096
_MOST = 1 << 53

Slot = Annotated[int, whole(0, MAX_GPUS_PER_NODE - 1, "a GPU index")]
Count = Annotated[int, whole(0, _MOST)]
Numa = Annotated[int, whole(-1, _MOST)]
Small = Annotated[int, whole(0, 99)]  # Generations and widths of PCIe, states.
NvLinks = Annotated[int, whole(0, 99)]
Number = Annotated[float, number(0, 1e9)]  # Watts, shares, MHz.
Degrees = Annotated[float, number(-273, 1e9)]
Gbps = Annotated[float, number(MIN_GBPS, MAX_GBPS)]
Name = Annotated[str, text(NODE_NAME, "a name of letters, digits, '.', '_' and '-'")]
Version = Annotated[str, text(r"[0-9]{1,2}\.[0-9]{1,2}", "a version such as 4.0")]
ClassName = Annotated[str, text(NAME, "a class name")]
LinkClass = Annotated[str, text(LINK_CLASS.pattern, "NVn, XGMIn, PIX, PXB, PHB, NODE or SYS")]
NicName = Annotated[str, text("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "the name of a NIC")]
PciAddress = Annotated[str, text(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "a PCI address")]
Reasons = Annotated[
    str, text("([a-z_]{1,40}( [a-z_]{1,40}){0,15})?", "reasons separated by blanks")
]
Profiles = Annotated[
    str, text("([a-z0-9_]{1,40}( [a-z0-9_]{1,40}){0,254})?", "power profiles separated by blanks")
]
Clocks = Annotated[list[Annotated[int, whole(1, MAX_MHZ)]], Meta(max_length=MAX_CLOCKS)]


class Health(Struct):
    """Readings of a GPU: the fields of `GpuHealth`."""

    pcie_gen: Small | None = None
    pcie_gen_most: Small | None = None
    pcie_gen_gpu: Small | None = None
    pcie_lanes: Small | None = None
    pcie_lanes_most: Small | None = None
    performance_state: Small | None = None
    active_nvlinks: NvLinks | None = None
    ecc_now: Count | None = None
    remapped: Count | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttle: Reasons | None = None


class Gpu(Struct):
    """A GPU; the fields but ``index`` and ``health`` are those of `GpuRecord`."""

    index: Slot
    uuid: Text | None = None
    name: Text | None = None
    model: Name | None = None
    pci: Text | None = None
    numa: Numa | None = None
    cpus: Text | None = None
    memory_mb: Count | None = None
    clocks_mhz: Clocks | None = None
    max_clock_mhz: Count | None = None
    default_clock_mhz: Count | None = None
    power_limit_w: Number | None = None
    min_limit_w: Number | None = None
    power_profiles: Profiles | None = None
    requested_profiles: Profiles | None = None
    temperature_c: Degrees | None = None
    ecc_corrected: Count | None = None
    ecc_uncorrected: Count | None = None
    nvlink_version: Version | None = None
    nvlinks: NvLinks | None = None
    nvswitch_links: NvLinks | None = None
    health: Health | None = None


class Pair(Struct):
    """Two GPUs."""

    a: Slot
    b: Slot


class PairLink(Pair):
    """The best link of two GPUs."""

    link_class: LinkClass = field(name="class")
    gbps: Annotated[float, number(0, MAX_GBPS)]


class Bandwidth(Pair):
    """Measured bandwidth between two GPUs, in both directions."""

    ab_gbps: Gbps | None = None
    ba_gbps: Gbps | None = None
    both_gbps: Gbps | None = None
    latency_us: Annotated[float, number(0, 1e9)] | None = None


class PathToGpu(Struct):
    """The way from a NIC to a GPU."""

    index: Slot
    link_class: LinkClass = field(name="class")


class PathToNic(Struct):
    """The way from a NIC to another one."""

    name: NicName
    link_class: LinkClass = field(name="class")


class ReportedNic(Struct):
    """A NIC."""

    name: NicName
    pci: PciAddress
    numa: Numa | None = None
    gpus: list[PathToGpu] = []
    nics: list[PathToNic] = []


class ReportedCollective(Struct):
    """Measured bandwidth of a collective."""

    gpus: Annotated[list[Slot], Meta(min_length=2, max_length=MAX_GPUS_PER_NODE)]
    operation: Annotated[str, words(*OPERATIONS)]
    gbps: Gbps
    size_bytes: Annotated[int, whole(1, 1 << 50)] | None = None


class Timing(Struct):
    """A run of a class on a GPU; the fields after ``value_ms`` are those of `RunConditions`."""

    index: Slot
    app_class: ClassName = field(name="class")
    value_ms: Annotated[float, number(MIN_TIME_MS, MAX_TIME_MS)]
    neighbours: Annotated[str, words(IDLE, LOADED)] = IDLE
    clock_mhz: Annotated[int, whole(0, MAX_MHZ)] | None = None
    limit_w: Annotated[int, whole(0, int(MAX_GPU_W))] = 0
    samples: Annotated[int, whole(1, _MOST)] | None = None
    spread: Number | None = None
    sm_mhz: Number | None = None
    memory_mhz: Number | None = None
    power_w: Number | None = None
    energy_j: Number | None = None
    temperature_c: Degrees | None = None
    throttle: Reasons = ""


class ReportedFault(Struct):
    """A failed call."""

    call: Text
    error: Text
    index: Slot | None = None


class Report(Struct):
    """A report of one node."""

    schema: Annotated[str, words(SCHEMA)]
    node: Name
    taken_at: Annotated[float, number(0, MAX_TIME_S)]
    driver: Text | None = None
    cuda: Text | None = None
    backend: Text | None = None
    link_backend: Text | None = None
    gpus: list[Gpu] = []
    links: list[PairLink] = []
    nics: Annotated[list[ReportedNic], Meta(max_length=MAX_NICS)] = []
    bandwidths: list[Bandwidth] = []
    collectives: Annotated[list[ReportedCollective], Meta(max_length=MAX_COLLECTIVES)] = []
    timings: Annotated[list[Timing], Meta(max_length=MAX_RUNS)] = []
    errors: list[ReportedFault] = []


MAX_CLASSES = 32
MAX_FAULTS = 256  # Faults of a report that are kept; of a broken node the first ones tell why.
_GPU_FIELDS = [field.name for field in fields(GpuRecord)]

P = TypeVar("P", bound=Pair)
Slots = Collection[int]  # Slurm's indices of the report's GPUs.


@dataclass(frozen=True)
class ProbeReport:
    """A checked report of one node."""

    node: str
    taken_at: float
    driver: str | None
    cuda: str | None  # Newest CUDA version that the driver supports.
    backend: str | None
    gpus: Mapping[int, GpuRecord]  # Slot (Slurm's IDX) -> record.
    links: tuple[Link, ...]
    nics: tuple[Nic, ...]
    runs: tuple[Run, ...]
    link_backend: str | None  # What measured the bandwidths; None: they were not measured.
    bandwidths: tuple[PairBandwidth, ...]
    collectives: tuple[Collective, ...]
    faults: tuple[Fault, ...]
    health: Mapping[int, GpuHealth]
    """Slot -> readings of its hardware; a GPU of which the report has none is absent."""


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
        return _checked(records.read(raw, Report))
    except ValueError as exc:
        raise SourceError(f"{where}: {exc}") from None


def _checked(raw: Report) -> ProbeReport:
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
        health={
            gpu.index: GpuHealth(**structs.asdict(gpu.health))
            for gpu in raw.gpus
            if gpu.health is not None
        },
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


def _bandwidths(raw: Report, gpus: Slots) -> Iterator[PairBandwidth]:
    for (a, b), one in _pairs("bandwidths", raw.bandwidths, gpus):
        ab, ba = one.ab_gbps, one.ba_gbps
        ab, ba = (ab, ba) if one.a == a else (ba, ab)
        yield PairBandwidth(raw.node, a, b, raw.taken_at, ab, ba, one.both_gbps, one.latency_us)


def _collectives(raw: Report, gpus: Slots) -> Iterator[Collective]:
    for i, one in enumerate(raw.collectives):
        slots = tuple(sorted(set(one.gpus)))
        sound = len(slots) == len(one.gpus) and all(slot in gpus for slot in slots)
        wrong = f"{quoted(one.gpus)} is not two or more GPUs of this report"
        _check(sound, f"collectives[{i}].gpus: {wrong}")
        yield Collective(raw.node, slots, one.operation, raw.taken_at, one.gbps, one.size_bytes)


def _nics(entries: Sequence[ReportedNic], gpus: Slots) -> Iterator[Nic]:
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


def _runs(raw: Report, gpus: Slots) -> Iterator[Run]:
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
