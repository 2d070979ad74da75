"""Application classes by sensitivity to compute variability (PAL, section III-A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.model.arrays import FloatArray

__all__ = ["Classifier", "Utilisation", "fit_classes"]

STARTS = 50
"""Starts of K-means; the best result wins."""


@dataclass(frozen=True)
class Utilisation:
    """GPU utilisation of an application. Units: percent of peak, 0..100."""

    dram: float
    """DRAM bandwidth."""
    peak_fu: float
    """The busiest functional unit (FP32, FP64, FP16, tensor, ...)."""

    def __post_init__(self) -> None:
        for value in (self.dram, self.peak_fu):
            if not 0.0 <= value <= 100.0:
                raise ValueError(f"utilisation must be 0..100 percent, not {value!r}")


@dataclass(frozen=True, eq=False)
class Classifier:
    """Centroids of the classes, most compute bound first."""

    names: tuple[str, ...]
    centroids: FloatArray
    """(K, 2): DRAM and peak functional unit utilisation, percent."""

    def distances(self, utilisation: Utilisation) -> dict[str, float]:
        """Euclidean distance to the centroid of each class. Units: percentage points."""
        gap = self.centroids - np.array([utilisation.dram, utilisation.peak_fu])
        far: list[float] = np.hypot(gap[:, 0], gap[:, 1]).tolist()
        return dict(zip(self.names, far, strict=True))

    def classify(self, utilisation: Utilisation) -> str:
        """Class of the nearest centroid (Euclidean); the first of equally near ones."""
        far = self.distances(utilisation)
        return min(self.names, key=far.__getitem__)


def fit_classes(
    applications: Mapping[str, Utilisation], names: Sequence[str] = ("A", "B", "C")
) -> tuple[Classifier, dict[str, str]]:
    """Group measured applications into ``len(names)`` classes by K-means [1]_.

    Parameters
    ----------
    applications : name -> utilisation; at least as many distinct points as classes.
    names : class names, most compute bound first.

    Returns
    -------
    The classifier, and application -> class for ``applications``.

    Raises
    ------
    ValueError
        There are fewer distinct points than classes, or a name occurs twice.
    SourceError
        scikit-learn is not installed.

    Notes
    -----
    Classes are ordered by (functional unit - DRAM) utilisation of the centroid, largest first: a
    slow clock affects compute-bound applications most. The order of ``applications`` does not
    matter, and the result is deterministic. K-means finds a local optimum; for the dozen
    applications of a site it is usually the global one.

    References
    ----------
    .. [1] Jain et al., "PAL: A Variability-Aware Policy for Scheduling ML Workloads in GPU
       Clusters", SC 2024, section III-A.
    """
    if len(set(names)) != len(names) or not names:
        raise ValueError("class names must differ, and at least one is needed")
    ordered = sorted(applications)
    points = np.array([[applications[a].dram, applications[a].peak_fu] for a in ordered])
    distinct = np.unique(points, axis=0) if ordered else points
    if len(distinct) < len(names):
        raise ValueError(
            f"{len(names)} classes need as many different applications, got {len(distinct)}"
        )
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise SourceError(not_installed("scikit-learn", "classify")) from None
    found = KMeans(len(names), n_init=STARTS, random_state=0).fit(points)
    centroids: FloatArray = found.cluster_centers_
    rank = np.lexsort((-centroids[:, 1], centroids[:, 0] - centroids[:, 1]))
    position = np.empty(len(names), dtype=np.int64)
    position[rank] = np.arange(len(names))
    members = {a: names[int(position[k])] for a, k in zip(ordered, found.labels_, strict=True)}
    return Classifier(tuple(names), centroids[rank]), members
