"""Fits of EffBW to measured all-reduce bandwidths: eq. 2 of MAPA, and the bottleneck.

An error on the samples of a fit says little, so each fit has the error on samples left out of it,
too. Samples with the same numbers of links are left out together: otherwise their twins, on other
sets or other nodes, would predict them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, EffBwModel, eq2_model, eq2_terms

Counts = tuple[int, int, int]
"""x, y, z of one ring, as in `bandwidth.eq2`."""


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
    rmse: float
    """Errors on the samples themselves."""
    left_out_rmse: float | None
    """Error on samples left out of their own fit; None: all have the same numbers of links."""
    predicted: tuple[float, ...]
    """Of each sample."""


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


_Errors = tuple[float, float, float | None]


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
