"""Builders of models and samples of the energy tests."""

import itertools
from collections.abc import Iterable

import numpy as np

from slurm_gpu_aware.features.models.fitting import conditions_of
from slurm_gpu_aware.features.models.performance_model import (
    MeasuredRange,
    PerformanceModel,
    PerformanceSample,
    PowerParameters,
    Quality,
)
from slurm_gpu_aware.features.models.throughput import ThroughputParameters

REFERENCE_MHZ = 1400.0
CLOCKS = tuple(range(700, 1401, 50))


def throughput(**changed: float) -> ThroughputParameters:
    """Coefficients of a network of 0.3 s an iteration with 32 samples a GPU."""
    values = {
        "io_s": 0.01,
        "io_sample_s": 2e-4,
        "grad_s": 0.02,
        "grad_sample_s": 8e-3,
        "grad_clock_share": 0.8,
        "sync_local_s": 0.03,
        "sync_local_gpu_s": 1e-3,
        "sync_node_s": 0.08,
        "sync_node_gpu_s": 5e-4,
        "sync_clock_share": 0.2,
        "gamma1": 1.5,
        "gamma2": 3.0,
        "sustained": 1.0,
    }
    return ThroughputParameters(**values | changed, reference_mhz=REFERENCE_MHZ)


def power(**changed: float) -> PowerParameters:
    """Coefficients of a GPU with 300 W."""
    values = {
        "static_w": 100.0,
        "grad_w": 200.0,
        "sync_w": 60.0,
        "knee": 0.7,
        "slope": 1.0,
        "batch_offset": 8.0,
    }
    return PowerParameters(**values | changed, reference_batch=32.0)


def true_model(
    of_time: ThroughputParameters | None = None, of_power: PowerParameters | None = None
) -> PerformanceModel:
    """A model with these coefficients, known from 1 to 32 GPUs and from 700 MHz on."""
    return PerformanceModel(
        "bert",
        "a100",
        of_time or throughput(),
        of_power or power(),
        Quality(10, 10, 0.01, 0.02, 0.03),
        MeasuredRange(1, 32, 700.0, REFERENCE_MHZ, 32.0, 128.0),
    )


def samples_of(
    model: PerformanceModel, conditions: Iterable[tuple[int, int, float, float]], noise: float = 0.0
) -> list[PerformanceSample]:
    """What would be measured of a model: (GPUs, nodes, batch size, MHz) -> sample."""
    bare = [PerformanceSample(*one, time_s=1.0) for one in conditions]
    at = conditions_of(bare)
    time_s, each_w = model.predict(at)
    rng = np.random.default_rng(1)
    factors = np.exp(rng.normal(0.0, noise, (2, len(bare))))
    return [
        sample._replace(time_s=float(t), power_w=float(w))
        for sample, t, w in zip(
            bare, time_s * factors[0], each_w * at.gpus * factors[1], strict=True
        )
    ]


def grid(
    sizes: Iterable[tuple[int, int]] = ((1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (32, 4)),
    batches: Iterable[float] = (8.0, 32.0, 64.0),
    clocks: Iterable[float] = (700.0, 950.0, 1150.0, 1400.0),
) -> list[tuple[int, int, float, float]]:
    """All combinations of (GPUs, nodes), batch size and clock."""
    return [(*n, b, f) for n, b, f in itertools.product(sizes, batches, clocks)]
