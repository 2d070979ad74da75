"""Extension of partial placements by one link: the step of the dynamic programs over subsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray

__all__ = ["Rows", "exact_type", "extended"]

Rows = npt.NDArray[np.floating[Any]]

_AT_ONCE = 1 << 14  # numbers in one expression, to stay in the caches; above it, end by end


def exact_type(weights: FloatArray, links: int) -> type[np.floating[Any]]:
    """Single precision if every sum of ``links`` weights is exact in it, else double.

    Link bandwidths are whole multiples of 1/1024 GB/s: 24 bits hold sums below 16,384 GB/s.
    """
    steps = np.abs(weights[np.isfinite(weights)]) * 1024.0
    small = float(steps.max(initial=0.0)) * links < 1 << 24
    return np.float32 if small and bool((steps == np.rint(steps)).all()) else np.float64


def extended(weights: Rows, ends: IntArray, values: Rows, ways: Sequence[np.ufunc]) -> Rows:
    """Best extension of partial placements to each GPU, for each way to combine links.

    Parameters
    ----------
    weights : (n, n) GB/s.
    ends : (P, M) GPU at which each of P partial placements over each of M sets is extended.
    values : (ways, P, M) their values.

    Returns
    -------
    (ways, M, n) the largest over P of ``way(values, link from the end to the GPU)``. Rows include
    the GPUs of the set; the caller selects.
    """
    n = weights.shape[0]
    if ends.size * n <= _AT_ONCE:
        links = weights.take(ends, axis=0)
        longer = np.empty((len(ways), *links.shape), weights.dtype)
        for at, way in enumerate(ways):
            way(links, values[at, :, :, None], out=longer[at])
        return np.asarray(longer.max(axis=1))
    best = np.full((len(ways), ends.shape[1], n), -np.inf, weights.dtype)
    room = np.empty_like(best[0])
    for place, end in enumerate(ends):
        links = weights.take(end, axis=0)
        for at, way in enumerate(ways):
            way(links, values[at, place][:, None], out=room)
            np.maximum(best[at], room, out=best[at])
    return best
