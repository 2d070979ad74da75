"""Bounded, robust least squares with priors, from several starts.

A coefficient has a prior value with a spread. Where the samples say much about it they decide;
where they say nothing (one GPU count only, one clock only) it keeps its prior value. So few samples
need no case of their own.

Priors of the coefficients: what is assumed before anything is measured.

Shares of the clock by class, and breakpoint f0 and slope of the voltage by GPU model, are rounded
from fits to published measurements of kernels and training stages on V100, RTX8000, A100 and A40.
Spreads are wide, so that a few measurements outweigh the priors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from slurm_gpu_aware.features.models.performance_model import PerformanceModel, PerformanceSample
from slurm_gpu_aware.features.models.throughput import Conditions
from slurm_gpu_aware.model.arrays import FloatArray

NOISE = 0.02  # Relative error of a measured time or power that is usual.
_OUTLIER = 3.0  # Residuals beyond this many usual errors or spreads count linearly.
_STARTS = 8
_EVALUATIONS = 100
_TOLERANCE = 1e-6
_STEP = 1e-7
_WIDE = 2.0  # Spread of logarithms of times about which little is known: a factor of 7.
_CLASS_SHARES = {"A": 0.9, "B": 0.6, "C": 0.25}
_SHAPES = {
    "v100": (0.65, 1.0, 250.0),
    "rtx8000": (0.55, 1.0, 230.0),
    "a100": (0.75, 1.5, 400.0),
    "a40": (0.62, 1.0, 290.0),
}
"""GPU model -> knee, slope, W."""


@dataclass(frozen=True)
class Coefficient:
    """A coefficient to fit: prior value, spread and bounds."""

    name: str
    prior: float
    spread: float  # Standard deviation of the value, or of its natural logarithm.
    low: float
    high: float
    logarithmic: bool = True  # Fitted by its logarithm, so positive.

    def inner(self, value: float) -> float:
        """The value in the coordinate of the fit, within the bounds."""
        bounded = min(max(value, self.low), self.high)
        return float(np.log(bounded)) if self.logarithmic else bounded


def fit_coefficients(
    log_errors: Callable[[Mapping[str, FloatArray]], FloatArray],
    coefficients: Sequence[Coefficient],
) -> dict[str, float]:
    """Coefficients by name with the least robust sum of squares. Deterministic.

    ``log_errors``: coefficients, of shape (K, 1) each -> logarithm of predicted over measured, of
    shape (K, measured values). All K sets are evaluated at once, which makes the derivatives cheap.
    """
    prior, low, high = (
        np.array([c.inner(value) for c, value in zip(coefficients, column, strict=True)])
        for column in zip(*((c.prior, c.low, c.high) for c in coefficients), strict=True)
    )
    spread = np.array([c.spread for c in coefficients])
    logarithmic = np.array([c.logarithmic for c in coefficients])
    steps = _STEP * np.maximum(1.0, np.abs(prior))

    def outer(inner: FloatArray) -> FloatArray:
        powers = np.exp(inner * logarithmic)
        return np.asarray(np.where(logarithmic, powers, inner), dtype=np.float64)

    def residuals(sets: FloatArray) -> FloatArray:
        values = {c.name: v[:, None] for c, v in zip(coefficients, outer(sets).T, strict=True)}
        return np.hstack((log_errors(values) / NOISE, (sets - prior) / spread))

    def derivatives(inner: FloatArray) -> FloatArray:
        h = np.where(inner + steps <= high, steps, -steps)
        sets = residuals(np.vstack((inner, inner + np.diag(h))))
        return np.asarray(((sets[1:] - sets[0]) / h[:, None]).T, dtype=np.float64)

    rng = np.random.default_rng(0)
    starts = [prior, *(prior + rng.normal(0.0, spread) for _ in range(_STARTS - 1))]
    margin = 1e-9 * (high - low)
    fits = [
        least_squares(
            lambda inner: residuals(inner[None, :])[0],
            np.clip(one, low + margin, high - margin),
            derivatives,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=_OUTLIER,
            x_scale=spread,
            ftol=_TOLERANCE,
            max_nfev=_EVALUATIONS,
        )
        for one in starts
    ]
    best = outer(min(fits, key=lambda fit: float(fit.cost)).x)
    return {c.name: float(v) for c, v in zip(coefficients, best, strict=True)}


@dataclass(frozen=True)
class Prior:
    """What class and GPU model tell about the shape of the curves."""

    clock_share: float  # Share of the gradient time that scales with 1 / f.
    clock_share_spread: float
    knee: float  # f0 / reference clock.
    slope: float
    shape_spread: float  # Spread of ``knee``; of the logarithm of ``slope`` five times as much.
    static_share: float = 0.35  # Static part of the power at the reference clock.
    typical_w: float = 250.0  # Power of a GPU at the reference clock if none was measured.
    low_mhz: float | None = None  # Lowest clock at which the shape was measured; None: it was not.


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
