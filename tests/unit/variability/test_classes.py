"""Application classes by K-means on utilisation."""

import sys

import numpy as np
import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.variability.scores import Centres, Utilisation, classify, fit_classes

APPS = {
    "resnet50": Utilisation(35.0, 78.0),
    "vgg19": Utilisation(30.0, 85.0),
    "dcgan": Utilisation(38.0, 70.0),
    "bert": Utilisation(55.0, 48.0),
    "gpt2": Utilisation(60.0, 45.0),
    "pagerank": Utilisation(72.0, 8.0),
    "pointnet": Utilisation(66.0, 14.0),
}


def members_of(centres: Centres, apps: dict[str, Utilisation]) -> dict[str, str]:
    return {app: classify(centres, use) for app, use in apps.items()}


def test_classes_run_from_compute_bound_to_memory_bound() -> None:
    centres = fit_classes(APPS)
    assert list(members_of(centres, APPS).values()) == list("AAABBCC")
    assert list(centres) == ["A", "B", "C"]
    assert (np.diff([centre.peak_fu - centre.dram for centre in centres.values()]) < 0).all()


def test_a_new_application_goes_to_the_nearest_centroid() -> None:
    centres = fit_classes(APPS)
    assert classify(centres, Utilisation(20.0, 95.0)) == "A"
    assert classify(centres, Utilisation(80.0, 0.0)) == "C"


def test_equally_near_goes_to_the_first() -> None:
    centres = {"X": Utilisation(10.0, 10.0), "Y": Utilisation(30.0, 10.0)}
    assert classify(centres, Utilisation(20.0, 10.0)) == "X"


def test_the_order_of_applications_does_not_matter() -> None:
    assert fit_classes(APPS) == fit_classes(dict(reversed(APPS.items())))


@pytest.mark.parametrize("seed", range(10))
def test_centroids_are_the_means_of_their_members(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 100, (14, 2))
    apps = {f"app{i:02d}": Utilisation(*map(float, p)) for i, p in enumerate(points)}
    centres = fit_classes(apps, ("A", "B", "C", "D"))
    members = members_of(centres, apps)
    labels = np.array(["ABCD".index(members[f"app{i:02d}"]) for i in range(14)])
    for k, centre in enumerate(centres.values()):
        mean = points[labels == k].mean(axis=0)
        assert (centre.dram, centre.peak_fu) == pytest.approx(tuple(mean))


def test_without_the_library_a_sentence_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(SourceError, match=r"scikit-learn is not installed.*\[classify\]"):
        fit_classes(APPS)


def test_as_many_applications_as_classes() -> None:
    apps = {"x": APPS["bert"], "y": APPS["vgg19"]}
    assert members_of(fit_classes(apps, ("hot", "cold")), apps) == {"x": "cold", "y": "hot"}


def test_too_few_different_applications_are_refused() -> None:
    with pytest.raises(ValueError, match="3 classes need as many different applications, got 1"):
        fit_classes({"x": APPS["bert"], "y": APPS["bert"], "z": APPS["bert"]})
    with pytest.raises(ValueError, match="got 0"):
        fit_classes({})


@pytest.mark.parametrize("bad", [-1.0, 100.5, float("nan")])
def test_impossible_utilisation_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"0\.\.100 percent"):
        Utilisation(bad, 50.0)
