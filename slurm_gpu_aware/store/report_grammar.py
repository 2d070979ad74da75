"""Grammar of a probe report (schema ``gpu-aware-probe/2``): its fields and their bounds.

A field that is missing or null is not known; a report may have fields that are not named here.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_gpu_aware.bounds import (
    MAX_GBPS,
    MAX_GPUS_PER_NODE,
    MAX_MHZ,
    MAX_TIME_MS,
    MAX_TIME_S,
    MIN_TIME_MS,
)
from slurm_gpu_aware.model.hardware_graph import LINK_CLASS, OPERATIONS
from slurm_gpu_aware.model.profile import IDLE, LOADED
from slurm_gpu_aware.names import NAME, NODE_NAME
from slurm_gpu_aware.records import Text, number, text, whole, words

SCHEMA = "gpu-aware-probe/2"
MAX_RUNS = 50_000
"""Runs of one report: 64 GPUs, 3 classes, 20 clocks, 10 runs are 38,400."""
MAX_CLOCKS = 1_024
MAX_NICS = 64
MAX_COLLECTIVES = 4_096
_MOST = 1 << 53

Slot = Annotated[int, whole(0, MAX_GPUS_PER_NODE - 1, "a GPU index")]
Count = Annotated[int, whole(0, _MOST)]
Numa = Annotated[int, whole(-1, _MOST)]
NvLinks = Annotated[int, whole(0, 99)]
Number = Annotated[float, number(0, 1e9)]
"""Watts, shares, MHz."""
Degrees = Annotated[float, number(-273, 1e9)]
Gbps = Annotated[float, number(1e-6, MAX_GBPS)]
Name = Annotated[str, text(NODE_NAME, "a name of letters, digits, '.', '_' and '-'")]
Version = Annotated[str, text(r"[0-9]{1,2}\.[0-9]{1,2}", "a version such as 4.0")]
ClassName = Annotated[str, text(NAME, "a class name")]
LinkClass = Annotated[str, text(LINK_CLASS.pattern, "NVn, XGMIn, PIX, PXB, PHB, NODE or SYS")]
NicName = Annotated[str, text("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "the name of a NIC")]
PciAddress = Annotated[str, text(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "a PCI address")]
Reasons = Annotated[
    str, text("([a-z_]{1,40}( [a-z_]{1,40}){0,15})?", "reasons separated by blanks")
]
Clocks = Annotated[list[Annotated[int, whole(1, MAX_MHZ)]], Meta(max_length=MAX_CLOCKS)]


class Gpu(Struct):
    """A GPU; the fields but ``index`` are those of `GpuRecord`."""

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
    temperature_c: Degrees | None = None
    ecc_corrected: Count | None = None
    ecc_uncorrected: Count | None = None
    nvlink_version: Version | None = None
    nvlinks: NvLinks | None = None
    nvswitch_links: NvLinks | None = None


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
