"""MAPA's three bandwidths and the models of the effective one (Ranganath et al., SC'21).

AggBW (eq. 1) is the sum of the links that the pattern uses. PreservedBW (eq. 3) is the sum of all
links among the GPUs that stay free. EffBW models the bandwidth of collectives:

* ``bottleneck`` (default): the slowest link of the best embedding. It is the bus bandwidth of a
  ring all-reduce, which moves 2(k-1)/k of the data over every link at the speed of the slowest
  one. A better link never makes a set worse.
* ``paper``: eq. 2 as published, a regression on 31 sets of 2 to 5 GPUs of a DGX-1 V100. It is not
  valid elsewhere and negative from 6 GPUs on, and better links can lower it.
* a refit: eq. 2 with coefficients from a site's own all-reduce measurements (`effbw_fit`). It
  uses the ring with the best slowest link, as the fit does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, direct_links

PUBLISHED = (
    *(16.396, 4.536, 1.556, -20.694, -9.467, 7.615, -7.973),
    *(12.733, -4.195, -8.413, 62.851, 27.418, -5.114, -46.973),
)
"""Coefficients of eq. 2 in the order of ``EQ2_TERMS``. GB/s."""

EQ2_TERMS = (
    *("x", "y", "z", "1/(x+1)", "1/(y+1)", "1/(z+1)", "xy", "yz", "zx"),
    *("1/(xy+1)", "1/(yz+1)", "1/(zx+1)", "xyz", "1/(xyz+1)"),
)


@dataclass(frozen=True)
class EffBwModel:
    """A model of EffBW: ``BOTTLENECK``, ``PAPER`` or the result of :func:`eq2_model`."""

    name: str
    """``bottleneck``, ``paper`` or ``refit``."""
    coefficients: tuple[float, ...] | None = None
    """Coefficients of eq. 2; None: the bottleneck model."""

    @property
    def of_fitted_ring(self) -> bool:
        """Eq. 2 uses the fitted ring, not the ring with the largest value."""
        return self.name == "refit"


BOTTLENECK = EffBwModel("bottleneck")
PAPER = EffBwModel("paper", PUBLISHED)


def eq2_model(coefficients: Sequence[float]) -> EffBwModel:
    """Eq. 2 with a site's 14 coefficients. Raises ValueError unless there are 14 finite ones."""
    values = tuple(float(c) for c in coefficients)
    if len(values) != len(PUBLISHED) or not np.isfinite(values).all():
        raise ValueError(f"eq. 2 has {len(PUBLISHED)} finite coefficients, not {len(values)}")
    return EffBwModel("refit", values)


def eq2_terms(x: FloatArray, y: FloatArray, z: FloatArray) -> FloatArray:
    """(..., 14) values of ``EQ2_TERMS`` for counts of links as in :func:`eq2`."""
    xy, yz, zx, xyz = x * y, y * z, z * x, x * y * z
    terms = [x, y, z, 1 / (x + 1), 1 / (y + 1), 1 / (z + 1), xy, yz, zx]
    terms += [1 / (xy + 1), 1 / (yz + 1), 1 / (zx + 1), xyz, 1 / (xyz + 1)]
    return np.stack(terms, axis=-1)


def eq2(
    x: npt.ArrayLike, y: npt.ArrayLike, z: npt.ArrayLike, model: EffBwModel = PAPER
) -> FloatArray:
    """EffBW by eq. 2 for x double, y single direct links and z other links of a ring. GB/s.

    A 2-GPU ring counts its link twice: (2,0,0), (0,2,0) or (0,0,2). Broadcasts.
    """
    arrays = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (x, y, z)))
    return np.asarray(eq2_terms(*arrays) @ np.asarray(model.coefficients or PUBLISHED))


@lru_cache(maxsize=64)
def link_kinds(graph: HardwareGraph) -> npt.NDArray[np.int8]:
    """(n, n) kinds for eq. 2: 2 = two or more direct links, 1 = one, 0 = other. Read-only."""
    links = [[0 if word == "X" else direct_links(word) for word in row] for row in graph.classes]
    kinds = np.minimum(links, 2).astype(np.int8)
    kinds.setflags(write=False)
    return kinds


def preserved_bw(graph: HardwareGraph, free: int, chosen: npt.ArrayLike) -> FloatArray:
    """PreservedBW (eq. 3): sum of the links among the free GPUs that remain. GB/s.

    ``free``: mask of the free GPUs. ``chosen``: mask, or array of masks, of the GPUs that a job
    would take.
    """
    # Unsigned: a machine may have 64 GPUs.
    remaining = np.asarray(np.uint64(free) & ~np.asarray(chosen).astype(np.uint64))
    shifts = np.arange(graph.n, dtype=np.uint64)
    bits = ((remaining[..., None] >> shifts) & np.uint64(1)).astype(np.float64)
    return np.asarray(((bits @ graph.gbps) * bits).sum(axis=-1) / 2.0)
