"""Integral of a step function of time: GPUs in use, power."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray


def area_until(since: FloatArray, values: npt.ArrayLike, at: FloatArray) -> FloatArray:
    """Integral from the first step up to each time in ``at``.

    ``since``: times of the steps in seconds, ascending; ``values``: the value from each of them on.
    The last value holds for ever.
    """
    times = np.append(since, max(at.max(), since[-1]))
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * values)])
    return np.asarray(np.interp(at, times, area))
