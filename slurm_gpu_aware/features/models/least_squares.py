"""Bounded, robust least squares with priors, from several starts.

A coefficient has a prior value with a spread. Where the samples say much about it they decide;
where they say nothing (one GPU count only, one clock only) it keeps its prior value. So few samples
need no case of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from slurm_gpu_aware.model.arrays import FloatArray

NOISE = 0.02
"""Relative error of a measured time or power that is usual."""
_OUTLIER = 3.0
"""Residuals beyond this many usual errors or spreads count linearly."""
_STARTS = 8
_EVALUATIONS = 100
_TOLERANCE = 1e-6
_STEP = 1e-7


@dataclass(frozen=True)
class Coefficient:
    """A coefficient to fit: prior value, spread and bounds."""

    name: str
    prior: float
    spread: float
    """Standard deviation of the value, or of its natural logarithm."""
    low: float
    high: float
    logarithmic: bool = True
    """Fitted by its logarithm, so positive."""

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
