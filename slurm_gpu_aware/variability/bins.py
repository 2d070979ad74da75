"""PAL's binning of PM scores: few distinct scores per class, outliers separate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.variability.ckmeans import (
    Weighted,
    best_intervals,
    centroids,
    silhouettes,
    weighted,
)

MIN_BINS = 2
MAX_BINS = 11
"""Range of K."""
MAX_ERROR = 0.10
"""Largest relative distance of a GPU from the score of its bin, if any K achieves it."""
OUTLIER_SIGMA = 3.0
"""GPUs farther than this from the mean, on either side, are outliers."""
EXTREME_SIGMA = 6.0
"""GPUs farther than this from the mean keep their own score."""
MAX_OWN = 16
"""Most GPUs that keep their own score, the most extreme ones: it bounds the size of L x V."""


@dataclass(frozen=True, eq=False)
class Binning:
    """Binned scores of one class."""

    scores: FloatArray
    """(n,) centroid of each GPU's bin, or its own score."""
    labels: IntArray
    """(n,) bin number; 0 is the best bin."""
    outlier: IntArray
    """(n,) 0: no outlier, 1: binned among outliers, 2: keeps its own score."""


def bin_scores(raw: npt.ArrayLike) -> Binning:
    """Bin the PM scores of one class (and one GPU model) as PAL does [1]_.

    1. GPUs beyond 3 sigma of the mean are outliers.
    2. The other GPUs are clustered by exact K-means with K from 2 to 11 (:func:`choose_bins`).
    3. Fast and slow outliers are binned separately in the same way; those beyond 6 sigma keep their
       own score.
    4. The score of a bin is its centroid.

    Parameters
    ----------
    raw : (n,) PM scores, finite, > 0. n may be 0.

    Notes
    -----
    Sigma is that of the population, including outliers; with at most ten GPUs no GPU is beyond
    3 sigma. No GPU gives no bins, one GPU or equal scores give one bin, two distinct scores give
    two. The binned mean equals the raw mean, and binning keeps the order of scores. The paper does
    not define "extreme" (here 6 sigma and at most 16 GPUs) and does not say that fast and slow
    outliers have separate bins.

    References
    ----------
    .. [1] Jain et al., "PAL: A Variability-Aware Policy for Scheduling ML Workloads in GPU
       Clusters", SC 2024.

    Examples
    --------
    >>> bin_scores([0.88, 0.90, 0.94, 1.05, 1.06, 1.07, 0.94]).scores.round(3).tolist()
    [0.915, 0.915, 0.915, 1.06, 1.06, 1.06, 0.915]
    """
    scores = np.asarray(raw, dtype=np.float64)
    outlier = _outliers(scores)
    binned = scores.copy()
    above = scores > (scores.mean() if scores.size else 0.0)
    for group in (outlier == 0, (outlier == 1) & above, (outlier == 1) & ~above):
        if group.any():
            points = weighted(scores[group])
            start = choose_bins(points)
            members = np.diff(np.append(start, points.values.size))
            binned[group] = np.repeat(centroids(points, start), members)[points.index]
    _, labels = np.unique(binned, return_inverse=True)
    return Binning(binned, labels.astype(np.int64), outlier)


def choose_bins(points: Weighted) -> IntArray:
    """The clustering with K from 2 to 11 and silhouettes closest to +1 for all bins.

    The K with the best worst bin wins, then the better mean over all GPUs, then the smaller K. One
    distinct value gives one cluster. Returns the first position of each bin in ``points``.

    Unlike the paper, a K that puts a GPU more than 10% away from its bin's score is used only if
    every K does; then the K with the least error wins. A bin of one GPU has silhouette 0, so with
    few GPUs the silhouettes alone would bin a 20% slower GPU with the others. The rule changes none
    of eight measured sets (136 to 392 GPUs of Longhorn, Frontera and Lonestar6).
    """
    clusterings = best_intervals(points, MAX_BINS)
    candidates = clusterings[MIN_BINS - 1 :] or clusterings
    if len(candidates) == 1:
        return candidates[0]
    errors = [_worst_error(points, start) for start in candidates]
    allowed = max(MAX_ERROR, min(errors))
    fit = [start for start, error in zip(candidates, errors, strict=True) if error <= allowed]

    def merit(start: IntArray) -> tuple[float, float]:
        per_bin, overall = silhouettes(points, start)
        # Rounded, so that errors in the last bit do not decide between equals.
        return round(float(per_bin.min()), 9), round(overall, 9)

    return max(fit, key=merit)


def _worst_error(points: Weighted, start: IntArray) -> float:
    """Largest distance of a GPU from the score of its bin, relative to that score."""
    centre = centroids(points, start)
    last = np.append(start[1:], points.values.size) - 1
    below, above = centre - points.values[start], points.values[last] - centre
    return float((np.maximum(below, above) / centre).max())


def _outliers(scores: FloatArray) -> IntArray:
    """0, 1 or 2 per GPU; see :class:`Binning`."""
    outlier = np.zeros(scores.size, dtype=np.int64)
    sigma = float(scores.std()) if scores.size else 0.0
    if sigma <= 1e-12 * float(np.abs(scores).max(initial=0.0)):
        return outlier  # equal except for rounding
    distance = np.abs(scores - scores.mean()) / sigma
    outlier[distance > OUTLIER_SIGMA] = 1
    extreme: BoolArray = distance > EXTREME_SIGMA
    order = np.argsort(-distance, kind="stable")[:MAX_OWN]
    outlier[order[extreme[order]]] = 2
    return outlier
