"""PAL's binning of PM scores: few distinct scores per class, outliers separate.

Exact one-dimensional K-means for every K at once, and silhouettes of its clusters.

In one dimension the best clusters are intervals of the sorted values, so dynamic programming finds
the global optimum. The result is deterministic.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray

MAX_DISTINCT = 32_768  # Above this many distinct values :func:`weighted` merges neighbours.
MIN_BINS = 2
MAX_BINS = 11  # Range of K.
MAX_ERROR = 0.10
"""Largest relative distance of a GPU from the score of its bin, if any K achieves it."""
OUTLIER_SIGMA = 3.0  # GPUs farther than this from the mean, on either side, are outliers.
EXTREME_SIGMA = 6.0  # GPUs farther than this from the mean keep their own score.
MAX_OWN = 16
"""Most GPUs that keep their own score, the most extreme ones: it bounds the size of L x V."""


@dataclass(frozen=True, eq=False)
class Weighted:
    """Distinct values in ascending order, with the number of GPUs that share each."""

    values: FloatArray
    counts: FloatArray
    index: IntArray  # Position in ``values`` of each original value.


def weighted(values: npt.ArrayLike, limit: int = MAX_DISTINCT) -> Weighted:
    """Sort and count the values.

    Above ``limit`` distinct values, the range is cut into ``limit`` equal cells, and the mean of a
    cell replaces its values. This bounds time and memory for a million GPUs. The total stays
    exact; no value moves by more than 1/``limit`` of the range.
    """
    data = np.asarray(values, dtype=np.float64)
    distinct, index, counts = np.unique(data, return_inverse=True, return_counts=True)
    if distinct.size > limit:
        low, high = float(distinct[0]), float(distinct[-1])
        cell = np.minimum((data - low) * (limit / (high - low)), limit - 1).astype(np.int64)
        _, index, counts = np.unique(cell, return_inverse=True, return_counts=True)
        distinct = np.bincount(index, weights=data) / counts
    return Weighted(distinct, counts.astype(np.float64), index.astype(np.int64))


def best_intervals(points: Weighted, most: int) -> list[IntArray]:
    """Optimal clusterings into 1, 2, ..., ``most`` intervals (fewer if there are fewer values).

    Parameters
    ----------
    points : n distinct values with counts.
    most : largest K, >= 1.

    Returns
    -------
    For each K the first position of each cluster, (K,) ascending from 0. Ties are broken
    deterministically.

    Notes
    -----
    The last interval of the best split of the first j values starts no earlier than that of the
    first j-1 values, so each layer is filled by halving: O(K n log n) time, O(K n) memory. Exact up
    to rounding of the prefix sums. Recurrence: Wang and Song, "Ckmeans.1d.dp", The R Journal 3/2,
    2011.
    """
    n = points.values.size
    sums = _Prefix(points)
    layer = sums.cost(np.zeros(n, dtype=np.int64), np.arange(n, dtype=np.int64))
    starts: list[IntArray] = [np.zeros(n, dtype=np.int64)]
    for k in range(1, min(most, n)):
        layer, start = _next_layer(layer, sums, k)
        starts.append(start)
    return [_trace(starts, k) for k in range(len(starts))]


def centroids(points: Weighted, start: IntArray) -> FloatArray:
    """(K,) mean of the members of each cluster."""
    total: FloatArray = np.add.reduceat(points.counts * points.values, start)
    return total / np.add.reduceat(points.counts, start)


def silhouettes(points: Weighted, start: IntArray) -> tuple[FloatArray, float]:
    """Mean silhouette of each cluster (K,) and over all members; K >= 2.

    A member's silhouette is (b - a) / max(a, b): a = mean distance to the other members of its
    cluster, b = mean distance to the nearest other cluster; 0 for a cluster of one (Rousseeuw
    1987). The nearest other cluster is a neighbour, and its mean distance is the distance to its
    centroid, so the whole takes O(n).
    """
    x, w = points.values, points.counts
    size = np.add.reduceat(w, start)
    total = np.add.reduceat(w * x, start)
    length = np.diff(np.append(start, x.size))
    own = np.repeat(np.arange(size.size), length)
    count_before = np.cumsum(w) - w
    sum_before = np.cumsum(w * x) - w * x
    left = count_before - np.repeat(count_before[start], length)
    left_sum = sum_before - np.repeat(sum_before[start], length)
    right = size[own] - left - w
    right_sum = total[own] - left_sum - w * x
    a = np.maximum(x * left - left_sum + right_sum - x * right, 0.0)
    a /= np.maximum(size[own] - 1.0, 1.0)
    padded = np.concatenate(([-np.inf], centroids(points, start), [np.inf]))
    b = np.minimum(x - padded[own], padded[own + 2] - x)
    s = np.where(size[own] > 1.0, (b - a) / np.maximum(a, b), 0.0)
    return np.add.reduceat(w * s, start) / size, float(np.dot(w, s) / w.sum())


class _Prefix:
    """Squared distances of any interval to its centroid, up to a factor, from prefix sums."""

    def __init__(self, points: Weighted) -> None:
        w = points.counts
        mean = float(np.dot(points.values, w) / w.sum())
        centred = points.values - mean  # reduces rounding
        x = centred / (float(np.abs(centred).max()) or 1.0)
        self._w = np.concatenate(([0.0], np.cumsum(w)))
        self._wx = np.concatenate(([0.0], np.cumsum(w * x)))
        self._wxx = np.concatenate(([0.0], np.cumsum(w * x * x)))

    def cost(self, first: IntArray, last: IntArray) -> FloatArray:
        """Cost of the intervals [first, last], both ends included."""
        end = last + 1
        w = self._w[end] - self._w[first]
        wx = self._wx[end] - self._wx[first]
        wxx = self._wxx[end] - self._wxx[first]
        cost: FloatArray = np.maximum(wxx - wx * wx / w, 0.0)
        return cost


def _next_layer(previous: FloatArray, sums: _Prefix, k: int) -> tuple[FloatArray, IntArray]:
    """Best costs and last starts with k+1 intervals, for the first j+1 values, j = k .. n-1."""
    n = previous.size
    best = np.full(n, np.inf)
    start = np.zeros(n, dtype=np.int64)
    stride = 1 << (n - k).bit_length()
    while stride := stride // 2:
        # Odd multiples of the stride, counted from 1; the even ones are done.
        j = np.arange(stride, n - k + 1, 2 * stride, dtype=np.int64) + (k - 1)
        before, after = j - stride, j + stride
        low = np.maximum(np.where(before >= k, start[np.maximum(before, 0)], k), k)
        high = np.minimum(np.where(after < n, start[np.minimum(after, n - 1)], j), j)
        # Try the starts low..high for each j; the first of equal ones wins. After rounding the
        # bounds of two neighbours can cross by a step.
        count = np.maximum(high, low) - low + 1
        offset = np.cumsum(count) - count
        candidate = np.arange(int(count.sum()), dtype=np.int64) + np.repeat(low - offset, count)
        value = previous[candidate - 1] + sums.cost(candidate, np.repeat(j, count))
        least = np.minimum.reduceat(value, offset)
        is_least = value == np.repeat(least, count)
        best[j] = least
        start[j] = np.minimum.reduceat(np.where(is_least, candidate, n), offset)
    return best, start


def _trace(starts: list[IntArray], k: int) -> IntArray:
    """Follow the starts of layer k back to the first interval."""
    found = np.zeros(k + 1, dtype=np.int64)
    last = starts[0].size - 1
    for layer in range(k, 0, -1):
        found[layer] = starts[layer][last]
        last = int(found[layer]) - 1
    return found


@dataclass(frozen=True, eq=False)
class Binning:
    """Binned scores of one class."""

    scores: FloatArray  # (n,) centroid of each GPU's bin, or its own score.
    labels: IntArray  # (n,) bin number; 0 is the best bin.
    outlier: IntArray  # (n,) 0: no outlier, 1: binned among outliers, 2: keeps its own score.


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
