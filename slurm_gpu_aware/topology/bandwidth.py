"""MAPA's three bandwidths and the models of the effective one (Ranganath et al., SC'21).

AggBW (eq. 1) is the sum of the links that the pattern uses. PreservedBW (eq. 3) is the sum of all
links among the GPUs that stay free. EffBW models the bandwidth of collectives:

* ``bottleneck`` (default): the slowest link of the best embedding. It is the bus bandwidth of a
  ring all-reduce, which moves 2(k-1)/k of the data over every link at the speed of the slowest
  one. A better link never makes a set worse.
* ``paper``: eq. 2 as published, a regression on 31 sets of 2 to 5 GPUs of a DGX-1 V100. It is not
  valid elsewhere and negative from 6 GPUs on, and better links can lower it.
* a refit: eq. 2 with coefficients from a site's own all-reduce measurements. It
  uses the ring with the best slowest link, as the fit does.

Fits of EffBW to measured all-reduce bandwidths: eq. 2 of MAPA, and the bottleneck.

An error on the samples of a fit says little, so each fit has the error on samples left out of it,
too. Samples with the same numbers of links are left out together: otherwise their twins, on other
sets or other nodes, would predict them.
"""

from collections.abc import Hashable, Iterable, Sequence
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
Counts = tuple[int, int, int]  # x, y, z of one ring, as in `bandwidth.eq2`.
_Errors = tuple[float, float, float | None]


@dataclass(frozen=True)
class EffBwModel:
    """A model of EffBW: ``BOTTLENECK``, ``PAPER`` or the result of :func:`eq2_model`."""

    name: str  # ``bottleneck``, ``paper`` or ``refit``.
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


@dataclass(frozen=True)
class Fit:
    """A fitted model and its errors. GB/s."""

    model: EffBwModel
    coefficients: tuple[float, ...]
    """Of eq. 2, or the share of the slowest link that an all-reduce gets."""
    samples: int
    rank: int
    """Independent terms in the samples; below the number of terms the fit has the smallest norm."""
    mae: float
    rmse: float  # Errors on the samples themselves.
    left_out_rmse: float | None
    """Error on samples left out of their own fit; None: all have the same numbers of links."""
    predicted: tuple[float, ...]  # Of each sample.


def fit_eq2(samples: Iterable[tuple[int, int, int, float]]) -> Fit:
    """Least-squares refit of eq. 2 to measured all-reduce bandwidths.

    ``samples``: (x, y, z, measured GB/s) per allocation, counts of one ring as in `bandwidth.eq2`.
    Minimum-norm solution, so fewer samples than terms are allowed. Fourteen terms need many more
    samples than the paper's 31: compare ``left_out_rmse`` with ``rmse``.

    Raises ValueError if there are fewer than two samples, or for a negative or infinite value.
    """
    rows = np.array([tuple(s) for s in samples], dtype=np.float64).reshape(-1, 4)
    if len(rows) < 2 or not np.isfinite(rows).all() or (rows[:, :3] < 0).any():
        raise ValueError("eq. 2 is fitted to at least two finite samples (x, y, z, GB/s)")
    counts = [tuple(row) for row in rows[:, :3].tolist()]
    values, rank, errors, predicted = _least_squares(eq2_terms(*rows[:, :3].T), rows[:, 3], counts)
    return Fit(eq2_model(values), values, len(rows), rank, *errors, predicted)


def fit_bottleneck(
    slowest_gbps: Sequence[float], measured_gbps: Sequence[float], counts: Sequence[Counts]
) -> Fit:
    """Fit of one number: the share of the slowest link of the best ring that an all-reduce gets.

    It changes no choice among the sets of a node, because it scales all of them; its errors show
    how well the bottleneck model describes the machine.
    """
    terms = np.array(slowest_gbps, dtype=np.float64).reshape(-1, 1)
    measured = np.array(measured_gbps, dtype=np.float64)
    values, rank, errors, predicted = _least_squares(terms, measured, counts)
    return Fit(BOTTLENECK, values, len(measured), rank, *errors, predicted)


def share_of_best(
    predicted: Sequence[float], measured: Sequence[float], groups: Sequence[Hashable]
) -> float:
    """Smallest share of the best measured bandwidth that a choice by ``predicted`` gets.

    ``groups``: samples of one group (a machine and a number of GPUs) compete. Of equal predictions
    the worst counts. 1.0: the model always chooses a best set.
    """
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    shares = [1.0]
    for own in members.values():
        best = max(predicted[i] for i in own)
        chosen = [measured[i] for i in own if predicted[i] >= best * (1.0 - 1e-9)]
        shares.append(min(chosen) / max(measured[i] for i in own))
    return min(shares)


def _least_squares(
    terms: FloatArray, measured: FloatArray, groups: Sequence[Hashable]
) -> tuple[tuple[float, ...], int, _Errors, tuple[float, ...]]:
    """Coefficients, rank, errors (mean, RMS, RMS of left-out groups), and predictions."""
    solution, _, rank, _ = np.linalg.lstsq(terms, measured, rcond=None)
    predicted = terms @ solution
    error = predicted - measured
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    group_of = np.array([numbers[group] for group in groups])
    left_out = None
    if len(numbers) > 1:
        squares = np.zeros(len(measured))
        for number in numbers.values():
            out = group_of == number
            part = np.linalg.lstsq(terms[~out], measured[~out], rcond=None)[0]
            squares[out] = (terms[out] @ part - measured[out]) ** 2
        left_out = float(np.sqrt(squares.mean()))
    errors = (float(np.abs(error).mean()), float(np.sqrt((error**2).mean())), left_out)
    return tuple(solution.tolist()), int(rank), errors, tuple(predicted.tolist())
