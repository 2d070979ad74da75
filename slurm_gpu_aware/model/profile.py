"""Profile of a cluster: GPU records, links, times and scores. GPUs are (node, Slurm's index).

History of measurements: two of them to compare, and reports of slow GPUs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

THROTTLED = frozenset(
    ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
)
"""Reasons for a lower clock that no well GPU has: heat, or a power supply that is overloaded."""
Gpu = tuple[str, int]  # (node, Slurm's index).
IDLE, LOADED = "idle", "loaded"  # Whether the other GPUs of the node work during a run.


@dataclass(frozen=True)
class GpuHealth:
    """Readings of one GPU. None: the GPU or its driver does not support the reading."""

    pcie_gen: int | None = None
    """Generation of the PCIe link now; idle GPUs lower it in states other than P0."""
    pcie_gen_most: int | None = None  # The best generation of this GPU in this slot.
    pcie_gen_gpu: int | None = None  # The best generation of the GPU itself, in whatever slot.
    pcie_lanes: int | None = None  # Width of the link now.
    pcie_lanes_most: int | None = None  # The best width of this GPU in this slot.
    performance_state: int | None = None  # 0: full clocks (P0).
    active_nvlinks: int | None = None
    """Those to CPUs and switches, too; 0: the GPU has links and none is active."""
    ecc_now: int | None = None  # Uncorrectable memory errors since the driver was loaded.
    remapped: int | None = None
    """Rows of memory that were replaced after uncorrectable errors, over the GPU's life."""
    remap_pending: bool | None = None
    """Whether a row, or before Ampere a page, waits for a reset to be replaced."""
    remap_failed: bool | None = None  # Whether a row could not be replaced.
    throttle: str | None = None
    """Reasons for a lower clock at this moment, separated by blanks; empty: none."""


@dataclass(frozen=True)
class GpuRecord:
    """One GPU as the probe saw it. None: not known."""

    uuid: str | None = None
    name: str | None = None  # NVML's product name.
    model: str | None = None  # The users' word, ``v100``.
    pci: str | None = None
    numa: int | None = None
    cpus: str | None = None  # CPU list near the GPU, ``0-3``.
    memory_mb: int | None = None
    clocks_mhz: tuple[int, ...] = ()  # Supported SM clocks, descending.
    max_clock_mhz: int | None = None
    default_clock_mhz: int | None = None
    power_limit_w: float | None = None
    min_limit_w: float | None = None  # The lowest power limit that can be set.
    power_profiles: str | None = None
    """Workload power profiles that it offers, ``max_p max_q``; None: it has none."""
    requested_profiles: str | None = None
    """Those that were requested at the time of the probe; empty: none."""
    temperature_c: float | None = None  # At the time of the probe.
    ecc_corrected: int | None = None  # Corrected memory errors over the GPU's life.
    ecc_uncorrected: int | None = None
    nvlink_version: str | None = None  # ``3.0``; None also for a GPU without NVLink.
    nvlinks: int | None = None  # Active NVLinks.
    nvswitch_links: int | None = None  # How many of them end at a switch.


class LimitRange(NamedTuple):
    """Power limits that a job may get on each of some GPUs, as far as is known. Units: W."""

    least_w: float = 0.0  # The lowest one that all of them accept.
    below_w: float = math.inf  # The lowest one in force; that of a job is below it.

    @classmethod
    def of(cls, limits: Iterable[tuple[float | None, float | None]]) -> Self:
        """Of GPUs with these lowest limits, and limits in force; None or 0: not known.

        A GPU whose lowest limit is above the one in force is not believed.
        """
        known = [(least_w or 0.0, own_w or math.inf) for least_w, own_w in limits]
        least_w = max((w for w, own_w in known if w <= own_w), default=0.0)
        return cls(least_w, min((own_w for _, own_w in known), default=math.inf))


class Link(NamedTuple):
    """The best link between two GPUs of a node."""

    a: int
    b: int
    link_class: str  # Word of `hardware_graph.LINK_CLASS`: NVn, XGMIn, PIX, PXB, PHB, NODE, SYS.
    gbps: float | None  # Bandwidth in one direction; None: the nominal one of the class.


@dataclass(frozen=True)
class Fault:
    """A failed call of the probe; ``slot`` None: it concerned the node."""

    slot: int | None
    call: str
    error: str


class RunConditions(NamedTuple):
    """Conditions of one run, and what the driver reported of the GPU meanwhile. None: not known.

    Clocks, power and energy are means over the measured part of the run, without its warm-up.
    """

    neighbours: str = IDLE  # ``idle`` or ``loaded``.
    clock_mhz: int = 0  # Locked SM clock; 0: not locked.
    limit_w: int = 0  # Power limit that was set for the run, at a locked clock; 0: the site's own.
    samples: int | None = None  # Iterations of which the time is the median.
    spread: float | None = None  # Relative spread of the iterations (1.4826 MAD / median).
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    energy_j: float | None = None  # Energy of one iteration.
    temperature_c: float | None = None  # Highest temperature.
    throttle: str = ""
    """Reasons for a lower clock that the driver gave, separated by blanks; empty: none."""


class GpuTiming(NamedTuple):
    """One measured time of a GPU for a class."""

    node: str
    slot: int
    app_class: str
    value_ms: float
    taken_at: float  # Unix time.
    model: str  # Empty: not known.
    board: str = ""
    """What `hardware_graph.board_of` the product name is: boards of one model are not compared."""


@dataclass(frozen=True)
class GpuScore:
    """Score of one GPU for one class."""

    node: str
    slot: int
    app_class: str
    value_ms: float
    raw: float  # PM score before binning.
    binned: float
    bin: int  # Bin number of its class and model, counted from the best (0).
    outlier: int  # 0 no, 1 binned among outliers, 2 keeps its own score.
    taken_at: float
    model: str | None = None
    uuid: str | None = None


@dataclass(frozen=True, eq=False)
class Profile:
    """Measurements of a cluster that placement uses. Compared by identity."""

    scores: Mapping[str, Mapping[Gpu, float]]
    """Class -> GPU -> binned PM score (lower is better), for policies."""
    raw_scores: Mapping[str, Mapping[Gpu, float]]  # Class -> GPU -> PM score before binning.
    gpus: Mapping[Gpu, GpuRecord]
    links: Mapping[str, tuple[Link, ...]]  # Node -> links; a node without links is absent.
    taken_at: Mapping[str, float]  # Node -> Unix time of its newest measurement.
    faults: Mapping[str, tuple[Fault, ...]]
    """Node -> faults of its newest probe; a node without faults is absent."""
    level_ratios: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Class -> locality level -> time over that at the innermost level (`penalties`)."""
    effbw: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """GPU model -> coefficients of MAPA's eq. 2 that were fitted to its all-reduces."""
    unseen: frozenset[Gpu] = frozenset()
    """GPUs of ``gpus`` that no probe has seen or failed to read; empty if no GPU was probed."""


def seen_only(profile: Profile) -> tuple[Profile, tuple[Gpu, ...]]:
    """The profile without the GPUs that no probe has seen, and these GPUs."""
    gpus = {gpu: record for gpu, record in profile.gpus.items() if gpu not in profile.unseen}
    return replace(profile, gpus=gpus), tuple(sorted(profile.unseen))


def profile_sentences(gpus: Mapping[Gpu, GpuRecord]) -> list[str]:
    """Which GPUs run under power profiles: a sentence each without a full stop."""
    of: dict[str, list[Gpu]] = {}
    for gpu in sorted(gpus):
        if words := gpus[gpu].requested_profiles:
            of.setdefault(words, []).append(gpu)
    return [
        f"power profile {words} is requested on {gpu_names(own)}: their times and energy are those"
        " under it, and compare with no others"
        for words, own in sorted(of.items())
    ]


def gpu_names(gpus: Iterable[Gpu]) -> str:
    """``n1:9, n9:0``; GPUs beyond eight are only counted."""
    names = [f"{node}:{slot}" for node, slot in gpus]
    more = len(names) - 8
    return ", ".join(names[:8]) + (f" and {more} more" if more > 0 else "")


class Pair(NamedTuple):
    """Two measurements of a GPU for a class: the newest one, and the one that it is compared with.

    Values are times of the runs in ms, at least one each.
    """

    node: str
    slot: int
    app_class: str
    model: str  # Empty: not known.
    before_ms: Sequence[float]
    now_ms: Sequence[float]
    before_at: float  # Unix time.
    now_at: float


class Alarm(NamedTuple):
    """A slow GPU that was reported."""

    node: str
    slot: int
    app_class: str
    before: float  # PM score before the GPU became slow.
    now: float  # PM score in the report.
