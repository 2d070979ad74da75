"""Properties of every set of scores."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu_aware.variability.bins import bin_scores
from slurm_gpu_aware.variability.scores import pm_scores

SCORES = st.lists(
    st.one_of(
        st.floats(0.5, 4.0, allow_nan=False),
        st.sampled_from([0.89, 0.94, 1.0, 1.06, 2.55]),
    ),
    min_size=1,
    max_size=80,
)


@given(SCORES)
@settings(max_examples=150, deadline=None)
def test_bins_keep_mean_order_and_range(raw: list[float]) -> None:
    binning = bin_scores(raw)
    order = np.argsort(raw, kind="stable")
    assert np.isclose(binning.scores.mean(), np.mean(raw))
    assert (np.diff(binning.scores[order]) >= -1e-12).all()
    assert binning.scores.min() >= min(raw) - 1e-12
    assert binning.scores.max() <= max(raw) + 1e-12


@given(SCORES)
@settings(max_examples=100, deadline=None)
def test_labels_and_centroids_agree(raw: list[float]) -> None:
    binning = bin_scores(raw)
    centroids = np.unique(binning.scores)
    assert centroids[binning.labels].tolist() == binning.scores.tolist()
    for label in range(centroids.size):
        members = np.asarray(raw)[binning.labels == label]
        assert np.isclose(members.mean(), centroids[label])


@given(SCORES, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_gpus_does_not_matter(raw: list[float], random: object) -> None:
    mixed = list(range(len(raw)))
    random.shuffle(mixed)  # type: ignore[attr-defined]
    again = bin_scores([raw[i] for i in mixed])
    assert np.allclose(again.scores, bin_scores(raw).scores[mixed], rtol=0, atol=1e-12)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60), st.floats(0.01, 100.0))
@settings(max_examples=100, deadline=None)
def test_scores_have_no_unit(times: list[float], factor: float) -> None:
    scores = pm_scores(times)
    assert np.isclose(np.median(scores), 1.0)
    assert np.allclose(pm_scores(np.asarray(times) * factor), scores)
