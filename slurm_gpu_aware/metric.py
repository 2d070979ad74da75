"""Metrics: what `gpu-aware metrics` exports, each declared beside what knows it.

A `Fact` is read once per refresh from the exporter's sources; a `Metric` is a family of Prometheus
with a pure function of one fact. `exporter.registry` has all of them. Names follow
https://prometheus.io/docs/practices/naming/: prefix, base units, ``_total`` for counters.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

PREFIX = "gpu_aware_"
SOURCES = ("store", "slurm", "counters", "watch", "config", "now", "exporter")
"""What a fact may be read from: the published copy of the store (`store.database.Store`), Slurm's
last answer (`selector.live_jobs.SlurmView`), what the selector has counted
(`selector.round_state.Counters`), what watch found (`selector.drift_metrics.Watched`), the
configuration, the Unix time, the exporter's own state."""
MOST_SERIES = 1_000  # Series of a family, unless it says otherwise.
MOST_GPU_SERIES = 100_000  # Series of a family with one per GPU, or per GPU and class.
GPU_LABELS = ("Hostname", "gpu", "UUID", "modelName", "slurm_index")
"""Labels of a GPU. The first four are those of NVIDIA's dcgm-exporter up to release 4.5.3-4.8.2;
later ones spell ``hostname``. ``gpu`` counts in NVML's order, ``slurm_index`` is Slurm's IDX."""
_NAME = re.compile(rf"{PREFIX}[a-z][a-z0-9_]*\Z")
# Prometheus gives each series job and instance of its own, and renames ours.
_LABEL = re.compile(r"(?!(?:job|instance)\Z)[a-zA-Z][a-zA-Z0-9_]*\Z")

Kind = Literal["gauge", "counter", "histogram", "gaugehistogram"]


class Sample(NamedTuple):
    """One series of a gauge or counter."""

    labels: tuple[str, ...]
    value: float


class Buckets(NamedTuple):
    """One series of a histogram."""

    labels: tuple[str, ...]
    buckets: Sequence[tuple[float, int]]
    """(upper bound, observations up to it), ascending; the last bound is infinite."""
    total: float  # Sum of all observations.


@dataclass(frozen=True, eq=False)
class Fact(Generic[T]):
    """What one or more metrics are computed from."""

    name: str
    wants: tuple[str, ...]
    """Names of `SOURCES`, in the order of the arguments of ``read`` and ``key``."""
    read: Callable[..., T]
    """Gives the value; may read files, and raise. Without one of its sources it is not called."""
    key: Callable[..., object] | None = None
    """Quick to read; the value is read again only if it changes. None: at every refresh."""

    def __post_init__(self) -> None:
        if unknown := set(self.wants) - set(SOURCES):
            raise ValueError(f"{self.name}: unknown sources {sorted(unknown)}")


@dataclass(frozen=True, eq=False)
class Metric(Generic[T]):
    """One family. Raises ValueError for a name or labels against the conventions."""

    name: str
    help: str
    kind: Kind
    fact: Fact[T]
    samples: Callable[[T], Iterable[Sample | Buckets]]  # Pure; no two samples have the same labels.
    labels: tuple[str, ...] = ()
    most: int = MOST_SERIES
    """Series that are exported; the others are counted in ``gpu_aware_series_dropped``."""

    def __post_init__(self) -> None:
        wrong = not _NAME.match(self.name) or not all(map(_LABEL.match, self.labels))
        if wrong or (self.kind == "counter") is not self.name.endswith("_total"):
            raise ValueError(f"{self.name}{list(self.labels)} is no name of a {self.kind}")


def one(value: float | None) -> list[Sample]:
    """The only series of a family without labels; none if the value is not known."""
    return [] if value is None else [Sample((), float(value))]


def by_label(values: Mapping[Any, float]) -> list[Sample]:
    """Series of a family with one label: its value -> the number."""
    return [Sample((str(name),), float(value)) for name, value in values.items()]


def bucketed(values: Iterable[float], bounds: Sequence[float]) -> Buckets:
    """A histogram without labels. ``bounds``: ascending, without the infinite one."""
    found = sorted(values)
    edges = [*bounds, float("inf")]
    return Buckets((), [(edge, sum(v <= edge for v in found)) for edge in edges], sum(found))
