"""Choice of a setting of GPUs: the least energy within a bound on time. Pure.

A setting is a clock, a power limit, or both. What counts is each setting against the default one,
so a model's error in the time of all settings alike does no harm.
"""

from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray

EXACT = 0.0025  # Share to which times are measured.


class Choice(NamedTuple):
    """A setting with less energy than the default one. Shares, 0.1: 10%."""

    at: int  # Index of the setting.
    saves: float  # Energy less than at the default setting, as the model predicts it.
    slower: float  # Time more than at the default setting; below 0: it is faster.
    at_most: float  # The same at the upper end of the model's error.


def least_energy_within(
    time_s: FloatArray, energy: FloatArray, error: FloatArray, default: int, slowdown: float
) -> Choice | None:
    """The setting with the least energy that is at most ``slowdown`` slower than the default one.

    The bound holds for the upper end of the error, to a quarter of a point: times are not measured
    more exactly. What is not known or not positive is left out.
    Of equal energies the least time counts. None: no such setting needs less energy than the
    default one, or the default one is not known.

    Parameters
    ----------
    time_s, energy : (S,) of a unit of work, in any units; NaN: not known.
    error : (S,) relative error of the time against that of the default setting; NaN: not known.
    default : index of the default setting.
    """
    known = np.isfinite(time_s) & np.isfinite(energy) & (time_s > 0) & (energy > 0)
    if not known[default]:
        return None
    longer = np.where(known, time_s, np.inf) / time_s[default]
    spends = np.where(known, energy, np.inf) / energy[default]
    upper = longer * (1.0 + error)
    allowed = (upper <= 1.0 + slowdown + EXACT) & (spends < 1.0)
    if not allowed.any():
        return None
    best = int(np.lexsort((longer, np.where(allowed, spends, np.inf)))[0])
    return Choice(
        at=best,
        saves=float(1.0 - spends[best]),
        slower=float(longer[best] - 1.0),
        at_most=float(upper[best] - 1.0),
    )
