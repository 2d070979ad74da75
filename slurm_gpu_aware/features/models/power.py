"""Power model: mean power of a GPU during an iteration, by clock, batch size and GPU count.

PowerFlow's energy of an iteration, ``E = n (P_grad T_grad + P_sync T_sync + P_static T_iter)``,
divided by its time. For the dependence on the clock stands ``P = c0 V + c1 V^2 f``, where the
voltage V is flat up to the clock f0 and linear above it: static power scales with V, the power of
switching with V^2 f. It replaces eqs 13 to 15 (linear below f0, cubic above; eq 15 lacks the
intercept that makes it continuous), is continuous and positive everywhere, and has two coefficients
instead of seven. In eq 12 the parenthesis is read as ``kappa(f) (log(bs + theta) + b)``, with
theta = 1 and b >= 0, so that the factor is positive; one factor of the product is fixed. Eqs 16 and
17 are missing in the paper; nothing stands for them here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.features.models.throughput import Amount, IterationTimes, Positive
from slurm_gpu_aware.model.arrays import FloatArray


@dataclass(frozen=True)
class PowerParameters:
    """Coefficients of the model. Watts of one GPU, at the reference clock and batch size."""

    static_w: Positive
    """P_static."""
    grad_w: Amount
    """P_grad: added during T_grad."""
    sync_w: Amount
    """P_sync: added during T_sync."""
    knee: Amount
    """f0 / reference clock: below it the voltage is flat."""
    slope: Amount
    """Relative growth of V from f0 to f0 plus one reference clock."""
    batch_offset: Positive
    """b of eq 12: the larger, the less P_grad depends on the batch size."""
    reference_batch: Positive


def gpu_power(
    parameters: PowerParameters, times: IterationTimes, batch_size: FloatArray
) -> FloatArray:
    """Mean power of each GPU in W, shape of ``times.total``. Positive and continuous.

    ``batch_size``: samples of each GPU, as in the conditions of ``times``.
    """
    p, ratio = parameters, times.clock_ratio
    volts = _voltage(p, ratio) / _voltage(p, np.float64(1.0))
    batch = _batch_factor(p, batch_size) / _batch_factor(p, np.float64(p.reference_batch))
    grad_share, sync_share = times.grad / times.total, times.sync / times.total
    switching = volts**2 * ratio * (p.grad_w * batch * grad_share + p.sync_w * sync_share)
    return np.asarray(p.static_w * volts + switching, dtype=np.float64)


def _voltage(p: PowerParameters, ratio: FloatArray | np.float64) -> FloatArray:
    return np.asarray(1.0 + p.slope * np.maximum(ratio - p.knee, 0.0), dtype=np.float64)


def _batch_factor(p: PowerParameters, batch: FloatArray | np.float64) -> FloatArray:
    return np.asarray(np.log1p(batch) + p.batch_offset, dtype=np.float64)
