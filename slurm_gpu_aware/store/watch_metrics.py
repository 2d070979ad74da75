"""Metrics of what ``gpu-aware-profile watch`` found."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.metric import GPU_LABELS, MOST_GPU_SERIES, Fact, Metric, Sample
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.metrics import GpuLabels, gpu_labels, unmeasured
from slurm_gpu_aware.store.watch_state import WatchState


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
