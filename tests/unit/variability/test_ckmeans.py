"""Exact 1-D K-means against brute force, and both against scikit-learn."""

from itertools import combinations

import numpy as np
import pytest

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.variability.bins import best_intervals, centroids, silhouettes, weighted


def brute_force(values: FloatArray, k: int) -> float:
    """Least cost over all ways to cut the sorted values into k runs."""
    ordered = np.sort(values)
    costs = []
    for cuts in combinations(range(1, ordered.size), k - 1):
        parts = np.split(ordered, cuts)
        costs.append(sum(((p - p.mean()) ** 2).sum() for p in parts))
    return float(min(costs))


def cost_of(values: FloatArray, start: np.ndarray) -> float:
    """Cost of a clustering into intervals of the distinct values."""
    points = weighted(values)
    distance = values - centroids(points, start)[expand(start, points.values.size)][points.index]
    return float((distance**2).sum())


def expand(start: np.ndarray, n: int) -> np.ndarray:
    """Labels of positions 0..n-1 from the starts of the clusters."""
    return np.searchsorted(start, np.arange(n), side="right") - 1


@pytest.mark.parametrize("seed", range(20))
def test_cost_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.round(rng.lognormal(0.0, 0.3, rng.integers(2, 11)), 2)
    found = best_intervals(weighted(values), 11)
    assert len(found) == len(np.unique(values))
    for k, start in enumerate(found, 1):
        assert start.size == k
        assert cost_of(values, start) == pytest.approx(brute_force(values, k), abs=1e-12)


@pytest.mark.parametrize("k", [2, 3, 5, 11])
def test_never_worse_than_sklearn(k: int) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    values = np.random.default_rng(k).standard_t(4, 400) * 0.02 + 1.0
    theirs = cluster.KMeans(k, n_init=10, random_state=0).fit(values[:, None]).inertia_
    ours = cost_of(values, best_intervals(weighted(values), 11)[k - 1])
    assert ours <= theirs * (1 + 1e-9)
    assert ours >= theirs * 0.9  # theirs is a local optimum, but not a bad one


@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_silhouettes_equal_sklearn(k: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    values = np.round(np.random.default_rng(k).normal(1.0, 0.05, 150), 3)  # with repeated values
    points = weighted(values)
    start = best_intervals(points, 11)[k - 1]
    labels = expand(start, points.values.size)[points.index]
    samples = metrics.silhouette_samples(values[:, None], labels)
    per_bin, overall = silhouettes(points, start)
    assert overall == pytest.approx(samples.mean(), abs=1e-9)
    assert per_bin.tolist() == pytest.approx(
        [samples[labels == i].mean() for i in range(k)], abs=1e-9
    )


def test_a_member_alone_has_silhouette_zero() -> None:
    points = weighted([1.0, 1.0, 2.0])
    per_bin, overall = silhouettes(points, best_intervals(points, 2)[1])
    assert per_bin.tolist() == [1.0, 0.0]
    assert overall == pytest.approx(2 / 3)


def test_clusters_survive_a_large_offset() -> None:
    """Prefix sums of squares lose digits if the values are not centred first."""
    values = np.concatenate([np.full(50, 1e6), np.full(50, 1e6 + 1e-3), np.full(50, 1e6 + 2e-3)])
    assert best_intervals(weighted(values), 3)[2].tolist() == [0, 1, 2]


def test_many_values_are_merged_without_moving_far() -> None:
    values = np.random.default_rng(0).normal(1.0, 0.02, 5000)
    points = weighted(values, limit=500)
    step = (values.max() - values.min()) / 500
    assert points.values.size <= 500
    assert np.abs(points.values[points.index] - values).max() <= step
    assert points.counts.sum() == values.size
    assert np.dot(points.counts, points.values) == pytest.approx(values.sum())
    assert (np.diff(points.values) > 0).all()
