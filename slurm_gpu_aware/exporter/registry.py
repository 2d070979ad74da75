"""The one list of all metrics, in the order in which they are exported, and the exporter's own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import slurm_gpu_aware
from slurm_gpu_aware.features import found
from slurm_gpu_aware.metric import Fact, Metric, Sample, by_label, one
from slurm_gpu_aware.selector import drift_metrics as drift
from slurm_gpu_aware.selector import metrics as selector
from slurm_gpu_aware.store import metrics as store


@dataclass(frozen=True)
class ExporterState:
    """What one refresh found, before these metrics. Times are Unix seconds."""

    at: float
    took_s: float = 0.0  # Of the refresh, up to here.
    read_at: Mapping[str, float] = field(default_factory=dict)
    """Source -> from when it is; a source that cannot be read is absent."""
    missing: Collection[str] = ()  # Sources that this host does not have, so that nothing is wrong.
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Family that could be computed -> series beyond its limit."""
    failed: int = 0  # Facts and families that could not be computed.


SOURCES = ("store", "slurm", "counters", "watch")
STATE: Fact[ExporterState] = Fact("exporter", ("exporter",), lambda state: state)

_OWN = (
    Metric(
        "gpu_aware_build_info",
        "1; the release of slurm-gpu-aware.",
        "gauge",
        STATE,
        lambda state: [Sample((slurm_gpu_aware.__version__,), 1.0)],
        ("version",),
    ),
    Metric(
        "gpu_aware_source_up",
        "1 if the source could be read: store (its published copy), slurm (slurmctld), counters"
        " (of the selector, on its host), watch (its file). Absent: this host has none. Families"
        " of a source that is down are absent.",
        "gauge",
        STATE,
        lambda state: by_label(
            {name: name in state.read_at for name in SOURCES if name not in state.missing}
        ),
        ("source",),
    ),
    Metric(
        "gpu_aware_source_timestamp_seconds",
        "Unix time from which the source is.",
        "gauge",
        STATE,
        lambda state: by_label(state.read_at),
        ("source",),
    ),
    Metric(
        "gpu_aware_refresh_timestamp_seconds",
        "Unix time of the refresh that all these metrics are of.",
        "gauge",
        STATE,
        lambda state: one(state.at),
    ),
    Metric(
        "gpu_aware_refresh_duration_seconds",
        "Duration of that refresh; no scrape waits for one.",
        "gauge",
        STATE,
        lambda state: one(state.took_s),
    ),
    Metric(
        "gpu_aware_series_dropped",
        "Series beyond the limit of their family, which are not exported.",
        "gauge",
        STATE,
        lambda state: by_label(state.dropped),
        ("family",),
    ),
    Metric(
        "gpu_aware_metrics_failed",
        "Facts and families that could not be computed; the log of the exporter says why.",
        "gauge",
        STATE,
        lambda state: one(state.failed),
    ),
)

METRICS: tuple[Metric[Any], ...] = (
    *store.METRICS,
    *drift.METRICS,
    *selector.METRICS,
    *(metric for metrics in found("metrics", "METRICS") for metric in metrics),
    *_OWN,
)
