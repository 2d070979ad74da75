"""The one list of all metrics, in the order in which they are exported."""

from typing import Any

from slurm_gpu_aware.exporter import own
from slurm_gpu_aware.features.energy import metrics as energy
from slurm_gpu_aware.features.estimates import metrics as estimates
from slurm_gpu_aware.features.power import metrics as power
from slurm_gpu_aware.features.shadow import metrics as shadow
from slurm_gpu_aware.metric import Metric
from slurm_gpu_aware.selector import drift_metrics as drift
from slurm_gpu_aware.selector import metrics as selector
from slurm_gpu_aware.store import metrics as store
from slurm_gpu_aware.store import watch_metrics as watch

METRICS: tuple[Metric[Any], ...] = (
    *store.METRICS,
    *drift.METRICS,
    *watch.METRICS,
    *selector.METRICS,
    *estimates.METRICS,
    *power.METRICS,
    *energy.METRICS,
    *shadow.METRICS,
    *own.METRICS,
)
