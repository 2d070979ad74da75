"""Settings of a site: the sections of the configuration file, with their defaults and bounds.

The annotations are read by `records`; what one setting says of another is a rule of its section,
or in `rules` if they are of several.
Sections of features stand in their folders (`model.section`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from slurm_gpu_aware.bounds import MAX_PENALTY, NAME, quoted
from slurm_gpu_aware.features import found
from slurm_gpu_aware.filter_rules import (
    HOLDING_POOL,
    LICENCE,
    MAX_NAME,
    RESERVATION,
    RUNS_FOLDER,
    in_holding_pool,
)
from slurm_gpu_aware.model.facets import Rules, Section
from slurm_gpu_aware.model.penalties import LEVELS, LevelPenalties, combine
from slurm_gpu_aware.records import MOST, Seconds, Text, above, number, text, whole, words

DEFAULT_PATH = Path("/etc/slurm-gpu-aware/config.toml")
DEFAULT_KINDS = ("user", "account", "qos", "partition")
"""What ``site.defaults`` goes by; an earlier one wins."""
T = TypeVar("T", bound=Section)
_ACROSS = 1.5  # PAL's L_across if it is neither configured nor measured.

ClassName = Annotated[str, text(NAME, "a class name")]
Mhz = Annotated[int, whole(1, 10_000)]
Limit = Annotated[float, above(0)]  # Time that a wait or a call may take, in seconds.


@dataclass(frozen=True)
class SiteConfig:
    """``[site]``: classes, and the default class of a job."""

    classes: Annotated[tuple[ClassName, ...], Meta(min_length=1)] = ("A", "B", "C")
    """Application classes, most sensitive to variability first."""
    default_class: Text = "B"  # Class of a job that names none.
    partitions: tuple[
        Annotated[str, text(f"[!-+.-~-]{{1,{MAX_NAME}}}", "a partition name")], ...
    ] = ()
    """Partitions that are managed; jobs of others pass untouched. Empty: all."""
    defaults: Mapping[str, Mapping[str, Text]] = field(
        default_factory=lambda: {kind: {} for kind in reversed(DEFAULT_KINDS)}
    )
    """One of `DEFAULT_KINDS` -> name -> hints of its jobs, in the grammar of the comment."""
    park_uncommented: bool = True
    """Park GPU jobs with any other comment, too (with the default class)."""
    operators: tuple[Text, ...] = ()
    """Users (name or id) that may change jobs' gate, nodes and GRES, as root and SlurmUser may."""


@dataclass(frozen=True)
class ClassConfig:
    """``[classes.NAME]``: what follows from a class."""

    clock_mhz: Mhz | None = None
    """SM clock for jobs of the class that name none; absent: default clock."""
    bandwidth_sensitive: bool = False  # Default of ``bw`` for the class.
    application: Text | None = None
    """Name of its jobs in an interference profile (``topo-aware``); absent: unknown."""
    restart_s: Seconds | None = None
    """Time that a restart of its jobs takes; absent: ``moves.restart_s``."""


@dataclass(frozen=True)
class PlacementConfig:
    """``[placement]``"""

    policy: Text = "eft"
    gpus: Annotated[str, words("exact", "nodes")] = "exact"
    """``nodes``: only nodes are chosen, Slurm chooses the GPUs there, and setup makes no types."""
    allowed: tuple[Text, ...] = (
        "eft",
        "pal+mapa",
        "pal",
        "pm-first",
        "packed",
        "mapa-preserve",
        "topo-aware",
    )
    """Policies that users may name with ``place=``; see `offered`."""
    allow_off: bool = True
    """Users may write ``place=off``: Slurm chooses the GPUs of the job, when its turn comes."""
    levels: Mapping[str, Annotated[float, number(1, MAX_PENALTY)]] = field(default_factory=dict)
    """Level of `LEVELS` -> its factor >= 1 on a job's iteration time; ``cluster``: L_across."""
    backfill: bool = True
    reservations: Annotated[int, whole(1, 1000)] = 16
    """Waiting jobs that no job behind them delays; 1: only the first one, as in EASY."""
    max_clock_mhz: Annotated[int, whole(0, MOST)] | None = None
    """What ``freq=max`` locks; absent: the default clock."""

    @property
    def offered(self) -> tuple[str, ...]:
        """Policies that ``place=`` may name: ``allowed``, and the site's own."""
        return tuple(dict.fromkeys([self.policy, *self.allowed]))

    def rules(self) -> Rules:
        """Known levels; each penalty at least that of the tighter one; 1.0 for the tightest."""
        key = "placement.levels."
        for name in self.levels:
            yield name in LEVELS, key + name, f"unknown level; known: {', '.join(LEVELS)}"
        tightest = next(iter(self.penalties))
        wrong = f"must be 1.0: {tightest} is the tightest level, penalties are relative to it"
        yield self.penalties[tightest] == 1.0, key + tightest, wrong
        for (tighter, least), (name, penalty) in pairwise(self.penalties.items()):
            wrong = f"must be at least {least:g}, the penalty of {tighter}, which is tighter"
            yield penalty >= least, key + name, wrong

    @property
    def penalties(self) -> dict[str, float]:
        """L of every level in use, always of ``node`` and ``cluster``, without measurements."""
        given = {"node": 1.0, "cluster": _ACROSS, **self.levels}
        return {name: given[name] for name in LEVELS if name in given}

    def penalties_with(self, measured: Mapping[str, Mapping[str, float]]) -> LevelPenalties:
        """L of every level and class, combined with ``measured`` (`Profile.level_ratios`)."""
        return combine(self.levels, measured, across=_ACROSS)


@dataclass(frozen=True)
class GateConfig:
    """``[gate]``: the licence that a reservation holds."""

    licence: Annotated[str, text(NAME, "a plain licence name")] = LICENCE
    licence_count: Annotated[int, whole(1, MOST)] = 100_000
    reservation: Annotated[str, text(NAME, "a plain reservation name")] = RESERVATION
    lease_s: Annotated[int, whole(0, MOST)] = 90
    """The reservation ends this long after the last heartbeat; parked jobs then start as usual."""
    show_running: bool = False  # Show GPUs and score of a running job in its AdminComment.
    guard_head: bool = True
    """Hold what is kept for the first waiting job by reservations, against jobs that cannot wait
    at the gate."""
    queue_tests: Annotated[int, whole(0, MOST)] = 4_000
    """Tests of a node for a parked job in a pass of Slurm's scheduler: 12,000 take about 0.1 s."""

    def rules(self) -> Rules:
        """Names that are not those of the holding pool; a lease of a minute at least."""
        wrong = f"{HOLDING_POOL} is the holding pool's licence"
        yield self.licence != HOLDING_POOL, "gate.licence", wrong
        wrong = f"names that begin with {HOLDING_POOL} are those of the holding pool"
        yield not in_holding_pool(self.reservation), "gate.reservation", wrong
        wrong = "must be at least 60: Slurm ends reservations by the minute"
        yield self.lease_s >= 60, "gate.lease_s", wrong


@dataclass(frozen=True)
class SelectorConfig:
    """``[selector]``"""

    round_s: Limit = 5.0  # Longest time between two rounds.
    heartbeat_s: Limit = 20.0
    start_timeout_s: Limit = 30.0  # A placed job that is still pending after this is parked again.
    command_timeout_s: Limit = 20.0  # Limit for one call to Slurm.
    reuse_backoff_s: Limit = 60.0
    """A job that was parked again is not planned for this long; doubles up to 16 times."""
    ahead_s: Annotated[float, number(0, 300)] = 20.0
    """Where jobs run for less than this on average, the next ones are opened before GPUs are free;
    0: never."""


@dataclass(frozen=True)
class StoreConfig:
    """``[store]``: SQLite on a local file system."""

    path: Path = Path("/var/lib/slurm-gpu-aware/store.db")
    published: Path | None = None  # Copy for readers on other hosts, on a shared folder.
    ledger_days: Annotated[int, whole(0, MOST)] = 180
    """Decisions older than this are deleted; 0 keeps all."""
    measurements: Annotated[int, whole(2, 10_000)] = 40
    """Newest measurements of each GPU and class, and of each link, that are kept."""


@dataclass(frozen=True)
class EventsConfig:
    """``[events]``: files that start a round at once."""

    submit_file: Path = Path("/var/spool/slurm-gpu-aware/submitted")
    """The filter appends a byte per submission."""
    jobcomp_file: Path | None = None  # JobCompLoc of jobcomp/filetxt, if the site has it.

    @property
    def defer_file(self) -> Path:
        """File by which the selector lets the filter defer jobs (`gate.licence_gate`)."""
        return self.submit_file.with_name(f"{self.submit_file.name}.defer")

    @property
    def waiting_file(self) -> Path:
        """File by which it defers jobs that pass the gate (`selector.head_guard`)."""
        return self.submit_file.with_name(f"{self.submit_file.name}.waiting")

    @property
    def runs_folder(self) -> Path:
        """Folder of what the filter knows of earlier runs (`selector.shortest_runs`)."""
        return self.submit_file.with_name(f"{self.submit_file.name}{RUNS_FOLDER}")


@dataclass(frozen=True)
class SetupConfig:
    """``[setup]``: what ``gpu-aware setup`` installs, and how its rollout changes nodes."""

    cli_filter: bool = False
    """Install cli_filter.lua, with which ``--test-only`` answers as without us."""
    distribute: tuple[Text, ...] = ()
    """Command with arguments that copies slurm.conf and gres.conf to all nodes, if any."""
    distribute_timeout_s: Limit = 600.0  # Limit for that command.
    register_timeout_s: Limit = 120.0
    """How long a node may take to register after ``scontrol reconfigure``."""


@dataclass(frozen=True)
class ProfilingConfig:
    """``[profiling]``: sweeps, and what counts as slower."""

    qos: Annotated[str, text("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "the name of a QOS")] | None = None
    """QOS of the probes of ``sweep --background``; absent: that of the user that sweeps."""
    slower_percent: Annotated[float, number(0, 1000)] = 3.0
    """Rise of a score that is never drift, whatever the spread."""


@dataclass(frozen=True)
class TuneConfig:
    """``[tune]``: what ``gpu-aware tune`` compares, and the bounds of what it may set."""

    apply: bool = False
    """``gpu-aware tune --apply`` may set the policy, and the selector takes what it has set."""
    allowed: tuple[Text, ...] = ("packed", "pal", "eft")
    """Policies that are compared, and the only ones that may be set."""
    ranges: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {
            "eft": {
                "breaking": [0.0, 0.3],
                "wait_cap": [0.0, 1.0],
                "longest_wait_s": [0.0, 2592000.0],
            }
        }
    )
    """Policy -> option -> lowest and highest value that may be set; both are compared, but for
    ``longest_wait_s``, which is compared at the longest wait of packed."""

    def rules(self) -> Rules:
        """At least one policy; two ends of each range."""
        yield bool(self.allowed), "tune.allowed", "at least one policy is needed"
        for policy, ranges in self.ranges.items():
            for option, ends in ranges.items():
                numbers = isinstance(ends, list) and all(
                    type(end) in (int, float) and abs(end) <= MOST for end in ends
                )
                sound = numbers and len(ends) == 2 and ends[0] <= ends[1]
                wrong = f"expected [lowest, highest] of numbers, not {quoted(ends)}"
                yield sound, f"tune.ranges.{policy}.{option}", wrong


@dataclass(frozen=True)
class CoreConfig:
    """The sections of the core."""

    site: SiteConfig = field(default_factory=SiteConfig)
    classes: Mapping[str, ClassConfig] = field(default_factory=dict)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policy -> its options as in the file; the policy checks them."""
    gate: GateConfig = field(default_factory=GateConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    events: EventsConfig = field(default_factory=EventsConfig)
    setup: SetupConfig = field(default_factory=SetupConfig)
    profiling: ProfilingConfig = field(default_factory=ProfilingConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    source: Path | None = None  # File that it came from; None: defaults.


SECTIONS: dict[str, type[Section]] = {
    section.name: section for some in found("declared", "SECTIONS") for section in some
}
"""Name -> type of the sections of features."""
File = make_dataclass(
    "File",
    [(name, kind, field(default_factory=kind)) for name, kind in SECTIONS.items()],
    bases=(CoreConfig,),
    frozen=True,
)
"""All sections, as they stand in the file."""


@dataclass(frozen=True)
class Config(CoreConfig):
    """Everything that a site can set; see ``etc/config.toml`` for the text an admin reads."""

    sections: Mapping[type[Section], Section] = field(
        default_factory=lambda: {kind: kind() for kind in SECTIONS.values()}
    )
    """Those of features, by their types."""

    @classmethod
    def of_file(cls, read: Any, source: Path) -> Config:
        """The configuration of a `File`."""
        core = {one.name: getattr(read, one.name) for one in fields(CoreConfig)}
        sections = {kind: getattr(read, name) for name, kind in SECTIONS.items()}
        return cls(**{**core, "source": source}, sections=sections)

    def of(self, kind: type[T]) -> T:
        """The section of a feature; the defaults of one that is not in the list of features."""
        section: T | None = self.sections.get(kind)  # type: ignore[assignment]
        return kind() if section is None else section

    def put(self, section: Section) -> Config:
        """The configuration with another section of a feature."""
        return replace(self, sections={**self.sections, type(section): section})

    def for_class(self, name: str) -> ClassConfig:
        """Settings of a class; defaults if the file has no section for it."""
        return self.classes.get(name, ClassConfig())

    @property
    def applications(self) -> dict[str, str]:
        """Class -> name of its jobs in an interference profile, where it is known."""
        return {name: c.application for name, c in self.classes.items() if c.application}
