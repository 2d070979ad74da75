"""Application classes: which ones suffer from compute variability (PAL, section III-A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray

__all__ = ["Classifier", "Utilisation", "fit_classes"]

MAX_ROUNDS = 300
"""Lloyd's iterations per start; a few suffice, the limit only guards against rounding cycles."""


@dataclass(frozen=True)
class Utilisation:
    """How an application uses a GPU. Units: percent of peak, 0..100."""

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
        """Class of the nearest centroid (Euclidean); of equally near ones the first."""
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
    The classifier, and application -> class for the measured ones.

    Raises
    ------
    ValueError
        If there are fewer distinct points than classes, or names occur twice.

    Notes
    -----
    Classes are ordered by (functional unit - DRAM) utilisation of the centroid, largest first:
    the more compute bound, the more an application feels a slow clock. Lloyd's algorithm from
    one start per point (that point, then farthest points), best result kept: no randomness, and
    the order in which applications are given does not matter. A local optimum in principle; in
    practice the global one for the dozen applications that a site measures.

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
    best = min(
        (_lloyd(points, _spread(distinct, first, len(names))) for first in range(len(distinct))),
        key=lambda found: round(found[0], 9),
    )
    _, labels, centroids = best
    rank = np.lexsort((-centroids[:, 1], centroids[:, 0] - centroids[:, 1]))
    position = np.empty(len(names), dtype=np.int64)
    position[rank] = np.arange(len(names))
    classifier = Classifier(tuple(names), centroids[rank])
    return classifier, {
        app: names[int(position[label])] for app, label in zip(ordered, labels, strict=True)
    }


def _spread(distinct: FloatArray, first: int, count: int) -> FloatArray:
    """``count`` starting centroids: one point, then always the farthest from those chosen."""
    chosen = [first]
    gap = ((distinct - distinct[first]) ** 2).sum(axis=1)
    while len(chosen) < count:
        chosen.append(int(np.argmax(gap)))
        gap = np.minimum(gap, ((distinct - distinct[chosen[-1]]) ** 2).sum(axis=1))
    return distinct[chosen].copy()


def _lloyd(points: FloatArray, centroids: FloatArray) -> tuple[float, IntArray, FloatArray]:
    """Sum of squares, labels and centroids of the local optimum near ``centroids``."""
    labels = np.full(len(points), -1, dtype=np.int64)
    for _ in range(MAX_ROUNDS):
        squares = ((points[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2)
        nearest = squares.argmin(axis=1)
        for k in range(len(centroids)):
            if not (nearest == k).any():  # give an empty cluster the point that fits worst
                crowded = np.bincount(nearest, minlength=len(centroids))[nearest] > 1
                own = squares[np.arange(len(points)), nearest]
                nearest[int(np.argmax(np.where(crowded, own, -1.0)))] = k
        if (nearest == labels).all():
            break
        labels = nearest
        centroids = np.array([points[labels == k].mean(axis=0) for k in range(len(centroids))])
    cost = float(((points - centroids[labels]) ** 2).sum())
    return cost, labels, centroids
