"""Metrics of GPUs that are not well: as ``gpu-aware-profile`` ``drift`` and ``watch`` find them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.metric import GPU_LABELS, MOST_GPU_SERIES, Fact, Metric, Sample, one
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.metrics import (
    OF_CLASS,
    GpuLabels,
    gpu_labels,
    sweeps,
    unmeasured,
)
from slurm_gpu_aware.store.profiles import judged_pairs
from slurm_gpu_aware.store.watch_state import WatchState
from slurm_gpu_aware.variability.drift import Change, drift

_SINCE_S = 30 * 86_400.0
_HOUR_S = 3600.0


class Slower(NamedTuple):
    """GPUs that became slower within 30 days."""

    gpus: Sequence[tuple[GpuLabels, Change]]
    unjudged: int  # GPUs and classes with too few runs to judge.


def _read(store: Store, config: Config, now: float) -> Slower:
    labels = gpu_labels(store)
    pairs = judged_pairs(store, now - _SINCE_S, config.site.classes)
    found = drift(pairs, least=config.profiling.slower_percent / 100.0)
    slower = [
        (labels.get((one.node, one.slot)) or unmeasured((one.node, one.slot)), one)
        for one in found.slower
    ]
    return Slower(slower, len(found.unjudged))


DRIFT = Fact(
    "drift",
    ("store", "config", "now"),
    _read,
    lambda store, config, now: (sweeps(store), int(now // _HOUR_S)),
)


class Watched(NamedTuple):
    """The source: what watch found, and the store, which it can do without."""

    state: WatchState
    store: Store | None


def _not_well(watched: Watched) -> list[tuple[GpuLabels, str]]:
    """(GPU, state), worst first."""
    bad, labels = watched.state.bad(), dict[Gpu, GpuLabels]()
    if bad and watched.store is not None:
        with suppress(StoreError):
            labels = gpu_labels(watched.store)
    return [(_labels((one.node, one.gpu), one.reading.name, labels), one.state) for one in bad]


def _labels(gpu: Gpu, name: str, labels: Mapping[Gpu, GpuLabels]) -> GpuLabels:
    if (known := labels.get(gpu)) is not None:
        return known
    node, number, uuid, _, slot = unmeasured(gpu)
    return node, number, uuid, name, slot


NOT_WELL = Fact("GPUs that are not well", ("watch",), _not_well)

METRICS: tuple[Metric[Any], ...] = (
    Metric(
        "gpu_aware_slow_gpus",
        "GPUs that became slower for a class within 30 days, by the newest sweep.",
        "gauge",
        DRIFT,
        lambda slower: one(len({labels for labels, _ in slower.gpus})),
    ),
    Metric(
        "gpu_aware_gpu_drift_ratio",
        "PM score of such a GPU divided by its score before it became slower.",
        "gauge",
        DRIFT,
        lambda slower: [Sample((*gpu, c.app_class), c.now / c.before) for gpu, c in slower.gpus],
        OF_CLASS,
    ),
    Metric(
        "gpu_aware_unjudged_gpus",
        "GPUs, counted once per class, of which drift cannot be judged: too few runs or GPUs.",
        "gauge",
        DRIFT,
        lambda slower: one(slower.unjudged),
    ),
    Metric(
        "gpu_aware_gpu_watch_state",
        "1 for each GPU that is not well, as gpu-aware-profile watch last saw it; state: ill, slow"
        " or drifted. Absent: all are well, or watch has no file beside the store.",
        "gauge",
        NOT_WELL,
        lambda found: [Sample((*labels, state), 1.0) for labels, state in found],
        (*GPU_LABELS, "state"),
        MOST_GPU_SERIES,
    ),
)
