"""Priors of the coefficients: what is assumed before anything is measured.

Shares of the clock by class, and breakpoint f0 and slope of the voltage by GPU model, are rounded
from fits to published measurements of kernels and training stages on V100, RTX8000, A100 and A40.
Spreads are wide, so that a few measurements outweigh the priors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.features.models.least_squares import Coefficient
from slurm_gpu_aware.features.models.performance_model import PerformanceModel
from slurm_gpu_aware.features.models.sample import PerformanceSample
from slurm_gpu_aware.features.models.throughput import Conditions

_WIDE = 2.0
"""Spread of logarithms of times about which little is known: a factor of 7."""


@dataclass(frozen=True)
class Prior:
    """What class and GPU model tell about the shape of the curves."""

    clock_share: float
    """Share of the gradient time that scales with 1 / f."""
    clock_share_spread: float
    knee: float
    """f0 / reference clock."""
    slope: float
    shape_spread: float
    """Spread of ``knee``; of the logarithm of ``slope`` five times as much."""
    static_share: float = 0.35
    """Static part of the power at the reference clock."""
    typical_w: float = 250.0
    """Power of a GPU at the reference clock if none was measured."""
    low_mhz: float | None = None
    """Lowest clock at which the shape was measured; None: it was not."""


_CLASS_SHARES = {"A": 0.9, "B": 0.6, "C": 0.25}
_SHAPES = {
    "v100": (0.65, 1.0, 250.0),
    "rtx8000": (0.55, 1.0, 230.0),
    "a100": (0.75, 1.5, 400.0),
    "a40": (0.62, 1.0, 290.0),
}
"""GPU model -> knee, slope, W."""


def prior_of(app_class: str, gpu_model: str) -> Prior:
    """The prior of a class on a GPU model; either may be empty (not known)."""
    share = _CLASS_SHARES.get(app_class)
    known = next((v for k, v in _SHAPES.items() if k in gpu_model.lower()), None)
    knee, slope, watts = known or (0.65, 1.0, 250.0)
    return Prior(
        clock_share=0.7 if share is None else share,
        clock_share_spread=0.3 if share is None else 0.2,
        knee=knee,
        slope=slope,
        shape_spread=0.1 if known is None else 0.05,
        typical_w=watts,
    )


def prior_from(model: PerformanceModel) -> Prior:
    """The prior of an application on a GPU model: the fitted model of its class there."""
    reference = model.throughput.reference_mhz
    measured = model.measured
    one = np.ones(1)
    clocks = np.array([0.9 * reference, reference])
    at = Conditions(one, one, measured.batch_size * one, clocks)
    slow, fast = model.predict(at)[0]
    share = float(np.log(slow / fast) / np.log(1.0 / 0.9))
    power = model.power
    return Prior(
        clock_share=min(max(share, 0.0), 1.0),
        clock_share_spread=0.2,
        knee=power.knee,
        slope=power.slope,
        shape_spread=0.03 if model.quality.power_samples else 0.1,
        static_share=min(max(power.static_w / (power.static_w + power.grad_w), 0.05), 0.95),
        typical_w=power.static_w + power.grad_w,
        low_mhz=measured.low_mhz,
    )


def throughput_coefficients(
    samples: Sequence[PerformanceSample], prior: Prior
) -> list[Coefficient]:
    """Coefficients of `throughput`; times scale with the median of the samples."""
    time = float(np.median([s.time_s for s in samples]))
    batch = float(np.median([s.batch_size for s in samples]))

    def times(name: str, share: float) -> Coefficient:
        value = share * time
        return Coefficient(name, value, _WIDE, 1e-6 * value, 1e4 * value)

    return [
        times("io_s", 0.02),
        times("io_sample_s", 0.01 / batch),
        times("grad_s", 0.1),
        times("grad_sample_s", 0.8 / batch),
        Coefficient(
            "grad_clock_share", prior.clock_share, prior.clock_share_spread, 0.0, 1.0, False
        ),
        times("sync_local_s", 0.1),
        times("sync_local_gpu_s", 0.01),
        times("sync_node_s", 0.2),
        times("sync_node_gpu_s", 0.01),
        Coefficient("sync_clock_share", 0.3, 0.2, 0.0, 1.0, False),
        Coefficient("gamma1", 2.0, 0.7, 1.0, 20.0),
        Coefficient("gamma2", 2.0, 0.7, 1.0, 20.0),
        Coefficient("sustained", 1.0, 0.03, 0.3, 1.0, False),
    ]


def power_coefficients(
    samples: Sequence[PerformanceSample], prior: Prior, reference_mhz: float
) -> list[Coefficient]:
    """Coefficients of `power`; W scale with the median of the samples that have power."""
    measured = [s for s in samples if s.power_w is not None]
    watts = float(np.median([_each_w(s) for s in measured])) if measured else prior.typical_w
    ratio = float(np.median([s.clock_mhz for s in measured])) / reference_mhz if measured else 1.0
    watts /= prior.static_share + (1.0 - prior.static_share) * min(max(ratio, 0.1), 1.0)
    static, switching = prior.static_share, 1.0 - prior.static_share
    spread = prior.shape_spread
    return [
        Coefficient("static_w", static * watts, 0.5, 0.02 * watts, 10 * watts),
        Coefficient("grad_w", switching * watts, 0.7, 1e-3 * watts, 100 * watts),
        Coefficient("sync_w", 0.5 * switching * watts, 0.7, 1e-3 * watts, 100 * watts),
        Coefficient("knee", prior.knee, spread, 0.2, 1.2, False),
        Coefficient("slope", prior.slope, 5 * spread, 0.01, 20.0),
        Coefficient("batch_offset", 20.0, 1.5, 0.1, 1e4),
    ]


def _each_w(sample: PerformanceSample) -> float:
    return (sample.power_w or 0.0) / sample.gpus
