"""Array types that all packages share, and the integral of a step function."""

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def area_until(since: FloatArray, values: npt.ArrayLike, at: FloatArray) -> FloatArray:
    """Integral from the first step up to each time in ``at``.

    ``since``: times of the steps in seconds, ascending; ``values``: the value from each of them on.
    The last value holds for ever.
    """
    times = np.append(since, max(at.max(), since[-1]))
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * values)])
    return np.asarray(np.interp(at, times, area))
