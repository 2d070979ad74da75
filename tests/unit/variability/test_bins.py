"""Binning: exact 1-D K-means, degenerate inputs, outliers, the choice of K, measured clusters."""

import csv
from itertools import combinations

import numpy as np
import pytest
from needs import shared_data

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.variability import bins
from slurm_gpu_aware.variability.bins import (
    MAX_OWN,
    best_intervals,
    bin_scores,
    centroids,
    choose_bins,
    silhouettes,
    weighted,
)
from slurm_gpu_aware.variability.scores import pm_scores


def measured(name: str) -> np.ndarray:
    """PM scores of a measured cluster."""
    with shared_data(f"variability/{name}.csv").open() as stream:
        return pm_scores([float(row["value_ms"]) for row in csv.DictReader(stream)])


@pytest.mark.parametrize(
    ("raw", "centroids"),
    [
        ([], []),
        ([1.3], [1.3]),
        ([1.0, 1.0], [1.0]),
        ([1.0, 1.5], [1.0, 1.5]),
        ([0.7] * 40, [0.7]),
        ([1.0, 1.0, 1.0, 1.2], [1.0, 1.2]),
        ([1.0, 1.01, 2.0], [1.005, 2.0]),
        # By silhouettes alone the 1.2 joins the 1.0s: a bin of one has silhouette 0.
        ([0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.2, 1.6], [1.0, 1.2, 1.6]),
        ([1.0] * 7 + [1.1] * 7 + [1.3], [1.0, 1.1, 1.3]),
    ],
)
def test_few_scores_fall_into_bins_of_equals(raw: list[float], centroids: list[float]) -> None:
    binning = bin_scores(raw)
    assert np.unique(binning.scores).tolist() == pytest.approx(centroids)
    assert binning.scores.tolist() == pytest.approx(
        [min(centroids, key=lambda c: abs(c - value)) for value in raw]
    )


def test_a_slow_gpu_among_sixteen_keeps_its_score() -> None:
    raw = [1.0, 1.01, 0.99, 1.0] * 3 + [1.05, 1.05, 1.06, 2.55]
    binning = bin_scores(raw)
    assert binning.outlier.tolist() == [0] * 15 + [1]
    assert binning.scores[15] == 2.55
    assert np.unique(binning.scores).max() == 2.55
    assert binning.scores[:15].max() < 1.07


def test_fast_and_slow_outliers_are_not_mixed() -> None:
    rng = np.random.default_rng(3)
    raw = np.concatenate([rng.normal(1.0, 0.01, 300), [0.80, 0.81], [1.20, 1.21]])
    binning = bin_scores(raw)
    assert (binning.outlier[300:] > 0).all()
    assert (binning.scores[300:302] < 0.82).all()
    assert (binning.scores[302:] > 1.19).all()


def test_beyond_six_sigma_keeps_its_own_score_but_not_too_many() -> None:
    slow = np.linspace(3.0, 4.0, 40)
    raw = np.concatenate([np.random.default_rng(1).normal(1.0, 0.01, 5000), slow])
    binning = bin_scores(raw)
    own = binning.outlier == 2
    assert own.sum() == MAX_OWN
    assert binning.scores[own].tolist() == raw[own].tolist()
    assert raw[own].min() == slow[-MAX_OWN]
    assert len(np.unique(binning.scores)) <= 11 + 11 + MAX_OWN


def test_k_has_the_best_worst_silhouette() -> None:
    rng = np.random.default_rng(5)
    raw = np.concatenate([rng.normal(m, 0.002, 60) for m in (0.94, 1.0, 1.06, 1.2)])
    points = weighted(raw)
    start = choose_bins(points)
    assert start.size == 4
    assert silhouettes(points, start)[0].min() > 0.85
    assert np.unique(bin_scores(raw).scores).round(2).tolist() == [0.94, 1.0, 1.06, 1.2]


def test_scores_too_far_apart_for_eleven_bins_get_the_least_error() -> None:
    raw = np.geomspace(0.5, 8.0, 60)
    binning = bin_scores(raw)
    assert np.unique(binning.scores).size == 11 + (binning.outlier == 2).sum()


def test_chosen_k_beats_every_other_by_sklearns_silhouettes() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    raw = np.random.default_rng(8).gamma(1600.0, 1 / 1600.0, 120)
    points = weighted(raw)
    worst = {}
    for start in best_intervals(points, 11)[1:]:
        at = np.searchsorted(start, np.arange(points.values.size), side="right") - 1
        labels = at[points.index]
        samples = metrics.silhouette_samples(raw[:, None], labels)
        worst[start.size] = min(samples[labels == i].mean() for i in range(start.size))
    assert worst[choose_bins(points).size] == pytest.approx(max(worst.values()))


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "centroids", "members"),
    [
        ("frontera_resnet", [0.9996, 1.0526, 1.1182, 1.1337], [272, 12, 7, 5]),
        ("frontera_bert", [0.997, 1.0028, 1.0554, 1.0591], [137, 131, 4, 4]),
        ("frontera_pagerank", [0.9988, 0.9996, 1.0, 1.0004], [1, 76, 87, 84]),
        # 28 of 172 GPUs form a separate group that is 3% faster.
        ("longhorn_pagerank", [0.9718, 1.0005], [28, 144]),
        ("longhorn_sgemm", [0.9862, 1.0122, 1.0671, 1.0767, 1.2027], [191, 197, 1, 2, 1]),
        ("lonestar6_resnet", [0.9894, 1.0239, 2.1407, 2.1644, 2.201], [139, 74, 1, 4, 1]),
    ],
)
def test_bins_of_measured_clusters(name: str, centroids: list[float], members: list[int]) -> None:
    binning = bin_scores(measured(name))
    assert np.unique(binning.scores).round(4).tolist() == centroids
    assert np.bincount(binning.labels).tolist() == members


@pytest.mark.shared
@pytest.mark.parametrize("name", ["longhorn_resnet", "longhorn_bert", "frontera_resnet"])
def test_bins_lose_little_of_measured_clusters(name: str) -> None:
    raw = measured(name)
    binning = bin_scores(raw)
    assert np.abs(binning.scores - raw).max() < 0.035
    assert ((binning.scores - raw) ** 2).sum() < 0.25 * ((raw - raw.mean()) ** 2).sum()
    assert 2 <= np.unique(binning.scores).size <= 11 + 11


MEASURED = [
    *("frontera_bert", "frontera_pagerank", "frontera_resnet", "lonestar6_resnet"),
    *("longhorn_bert", "longhorn_pagerank", "longhorn_resnet", "longhorn_sgemm"),
]


@pytest.mark.shared
@pytest.mark.parametrize("name", MEASURED)
def test_on_measured_clusters_the_silhouettes_alone_decide(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = measured(name)
    with_rule = bin_scores(raw).scores.tolist()
    monkeypatch.setattr(bins, "MAX_ERROR", float("inf"))
    assert bin_scores(raw).scores.tolist() == with_rule


@pytest.mark.parametrize("count", [27_648, 200_000])
def test_large_clusters_get_few_bins(count: int) -> None:
    raw = np.random.default_rng(2).lognormal(0.0, 0.03, count)
    binning = bin_scores(raw)
    assert binning.scores.shape == (count,)
    assert np.unique(binning.scores).size < 40
    assert binning.scores.mean() == pytest.approx(raw.mean())


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
