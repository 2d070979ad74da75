"""PAL's binning of PM scores: few distinct scores per class, outliers apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.variability.ckmeans import (
    Intervals,
    Weighted,
    best_intervals,
    silhouettes,
    weighted,
)

__all__ = ["MAX_BINS", "Binning", "bin_scores", "choose_bins"]

MIN_BINS = 2
MAX_BINS = 11
"""K is swept over MIN_BINS .. MAX_BINS."""
MAX_ERROR = 0.10
"""No K under which a GPU is more than 10% off the score of its bin, if another K avoids it."""
OUTLIER_SIGMA = 3.0
"""GPUs further than this from the mean are left out of the silhouette analysis, on both sides."""
EXTREME_SIGMA = 6.0
"""GPUs further than this from the mean keep their own score."""
MAX_OWN = 16
"""At most this many (the most extreme) keep their own, so that L x V stays small on any cluster."""


@dataclass(frozen=True, eq=False)
class Binning:
    """Binned scores of one class."""

    scores: FloatArray
    """(n,) centroid of each GPU's bin, or its own score."""
    labels: IntArray
    """(n,) bin number, counted from the best bin (0)."""
    centroids: FloatArray
    """(bins,) ascending."""
    outlier: IntArray
    """(n,) 0: no, 1: an outlier that was binned among outliers, 2: keeps its own score."""
    silhouette: FloatArray
    """Mean silhouette of each bin of the GPUs that are no outliers; empty if they are one bin."""


def bin_scores(raw: npt.ArrayLike) -> Binning:
    """Bin the PM scores of one class (and one GPU model) as PAL does [1]_.

    1. GPUs beyond 3 sigma of the mean, fast or slow, are taken out.
    2. The others are clustered by exact K-means with the K of 2..11 whose silhouettes are
       closest to +1 for all bins, and that keeps GPUs within 10% of their bin's score
       (:func:`choose_bins`).
    3. Outliers are binned in the same way among themselves, fast and slow ones separately; those
       beyond 6 sigma keep their own score.
    4. The score of a bin is its centroid.

    Parameters
    ----------
    raw : (n,) PM scores, finite, > 0. n may be 0.

    Raises
    ------
    ValueError
        If a score is NaN, infinite or not positive, or ``raw`` is not flat.

    Notes
    -----
    Sigma is the population's, over all GPUs including the outliers, computed once; with ten GPUs
    or fewer none can be beyond 3 sigma. Degenerate inputs: no GPU gives no bins, one GPU or
    equal scores give one bin, two distinct scores give two. The binned mean equals the raw mean,
    and a GPU with a lower raw score never has a higher binned one. The paper leaves two things
    open, decided here: what "extreme" is (6 sigma, and at most 16 GPUs), and that fast outliers
    are never put in a bin with slow ones.

    References
    ----------
    .. [1] Jain et al., "PAL: A Variability-Aware Policy for Scheduling ML Workloads in GPU
       Clusters", SC 2024.

    Examples
    --------
    >>> bin_scores([0.88, 0.90, 0.94, 1.05, 1.06, 1.07, 0.94]).centroids.round(3).tolist()
    [0.915, 1.06]
    """
    scores = np.asarray(raw, dtype=np.float64)
    if scores.ndim != 1:
        raise ValueError(f"expected a flat list of scores, not shape {scores.shape}")
    if not bool(np.all(np.isfinite(scores) & (scores > 0.0))):
        raise ValueError("PM scores must be finite and more than 0")
    outlier = _outliers(scores)
    binned = scores.copy()
    inside = outlier == 0
    silhouette = np.empty(0)
    if inside.any():
        binned[inside], silhouette = _cluster(scores[inside])
    middle = float(scores.mean()) if scores.size else 0.0
    for side in ((outlier == 1) & (scores > middle), (outlier == 1) & (scores < middle)):
        if side.any():
            binned[side], _ = _cluster(scores[side])
    centroids, labels = np.unique(binned, return_inverse=True)
    return Binning(binned, labels.astype(np.int64), centroids, outlier, silhouette)


def choose_bins(points: Weighted) -> tuple[Intervals, FloatArray]:
    """The clustering with the K of 2..11 whose silhouettes are as close to +1 as possible for all
    bins, and its mean silhouette per bin.

    "For all bins" is read literally: the K with the best worst bin wins; among equals the better
    mean over all GPUs, then the smaller K. One distinct value gives one cluster, without
    silhouettes.

    Beyond the paper, a K that puts a GPU more than 10% away from its bin's score is passed over
    while another K avoids that (and if none does, the K that errs least is taken). A bin of one
    counts as silhouette 0, so on a handful of GPUs the silhouettes alone would rather call a GPU
    that is 20% slower equal to the others than give it a bin of its own. On none of eight measured
    sets (136 to 392 GPUs of Longhorn, Frontera and Lonestar6) does the rule change anything.
    """
    found = best_intervals(points, MAX_BINS)
    if len(found) < MIN_BINS:
        return found[0], np.empty(0)
    candidates = found[MIN_BINS - 1 :]
    errors = [_worst_error(points, clusters) for clusters in candidates]
    allowed = max(MAX_ERROR, min(errors))
    best: tuple[tuple[float, float], Intervals, FloatArray] | None = None
    for clusters, error in zip(candidates, errors, strict=True):
        if error > allowed:
            continue
        per_bin, overall = silhouettes(points, clusters)
        # Rounded, so that rounding in the last bit does not decide between equals.
        merit = (round(float(per_bin.min()), 9), round(overall, 9))
        if best is None or merit > best[0]:
            best = (merit, clusters, per_bin)
    assert best is not None  # noqa: S101 - the candidate that errs least is allowed
    return best[1], best[2]


def _worst_error(points: Weighted, clusters: Intervals) -> float:
    """Largest distance of a GPU from the score of its bin, relative to that score."""
    centre = _centroids(points, clusters)
    last = np.append(clusters.start[1:], points.values.size) - 1
    below = centre - points.values[clusters.start]
    above = points.values[last] - centre
    return float((np.maximum(below, above) / centre).max())


def _centroids(points: Weighted, clusters: Intervals) -> FloatArray:
    size = np.add.reduceat(points.counts, clusters.start)
    total: FloatArray = np.add.reduceat(points.counts * points.values, clusters.start)
    return total / size


def _outliers(scores: FloatArray) -> IntArray:
    """0, 1 or 2 per GPU; see :class:`Binning`."""
    marks = np.zeros(scores.size, dtype=np.int64)
    sigma = float(scores.std()) if scores.size else 0.0
    if sigma <= 1e-12 * float(np.abs(scores).max(initial=0.0)):
        return marks  # all equal but for rounding
    distance = np.abs(scores - scores.mean()) / sigma
    marks[distance > OUTLIER_SIGMA] = 1
    extreme: BoolArray = distance > EXTREME_SIGMA
    order = np.argsort(-distance, kind="stable")[:MAX_OWN]
    marks[order[extreme[order]]] = 2
    return marks


def _cluster(scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Centroid per score, and the silhouettes of the bins."""
    points = weighted(scores)
    clusters, per_bin = choose_bins(points)
    centre = _centroids(points, clusters)
    own = np.repeat(centre, np.diff(np.append(clusters.start, points.values.size)))
    return own[points.index], per_bin
