"""Binning: degenerate inputs, outliers, the choice of K, and measured clusters."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu_aware.variability import bins
from slurm_gpu_aware.variability.bins import (
    MAX_OWN,
    best_intervals,
    bin_scores,
    choose_bins,
    silhouettes,
    weighted,
)
from slurm_gpu_aware.variability.scores import pm_scores

SHARED = Path(
    os.environ.get("GPU_AWARE_SHARED", Path(__file__).resolve().parents[3].parent / "shared")
)
DATA = SHARED / "data" / "variability"


def measured(name: str) -> np.ndarray:
    """PM scores of a measured cluster."""
    file = DATA / f"{name}.csv"
    if not file.exists():
        pytest.skip(f"measured data not found: {file}")
    with file.open() as stream:
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
    ],
)
def test_degenerate_inputs(raw: list[float], centroids: list[float]) -> None:
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


@pytest.mark.parametrize(
    ("raw", "centroids"),
    [
        ([0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.2, 1.6], [1.0, 1.2, 1.6]),
        ([1.0] * 7 + [1.1] * 7 + [1.3], [1.0, 1.1, 1.3]),
    ],
)
def test_one_slow_gpu_among_few_is_not_called_equal(
    raw: list[float], centroids: list[float]
) -> None:
    """By silhouettes alone the 1.2 joins the 1.0s, because a bin of one has silhouette 0."""
    assert np.unique(bin_scores(raw).scores).tolist() == pytest.approx(centroids)


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
    "frontera_bert",
    "frontera_pagerank",
    "frontera_resnet",
    "lonestar6_resnet",
    "longhorn_bert",
    "longhorn_pagerank",
    "longhorn_resnet",
    "longhorn_sgemm",
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
