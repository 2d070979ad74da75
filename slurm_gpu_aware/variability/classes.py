"""Application classes by sensitivity to compute variability (PAL, section III-A)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.errors import SourceError, not_installed


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


Centres = Mapping[str, Utilisation]
"""Class -> its centre, most compute bound first."""


def distances(centres: Centres, use: Utilisation) -> dict[str, float]:
    """Euclidean distance to the centre of each class. Units: percentage points."""
    return {
        name: math.hypot(use.dram - centre.dram, use.peak_fu - centre.peak_fu)
        for name, centre in centres.items()
    }


def classify(centres: Centres, use: Utilisation) -> str:
    """Class of the nearest centre (Euclidean); the first of equally near ones."""
    far = distances(centres, use)
    return min(far, key=far.__getitem__)


def fit_classes(
    applications: Mapping[str, Utilisation], names: Sequence[str] = ("A", "B", "C")
) -> dict[str, Utilisation]:
    """Group measured applications into ``len(names)`` classes by K-means [1]_.

    Parameters
    ----------
    applications : name -> utilisation; at least as many distinct points as classes.
    names : class names, all different, most compute bound first.

    Raises
    ------
    ValueError
        There are fewer distinct points than classes.
    SourceError
        scikit-learn is not installed.

    Notes
    -----
    Classes are ordered by (functional unit - DRAM) utilisation of the centre, largest first: a
    slow clock affects compute-bound applications most. The order of ``applications`` does not
    matter, and the result is deterministic. K-means finds a local optimum; for the dozen
    applications of a site it is usually the global one.

    References
    ----------
    .. [1] Jain et al., "PAL: A Variability-Aware Policy for Scheduling ML Workloads in GPU
       Clusters", SC 2024, section III-A.
    """
    points = sorted((use.dram, use.peak_fu) for use in applications.values())
    if len(set(points)) < len(names):
        raise ValueError(
            f"{len(names)} classes need as many different applications, got {len(set(points))}"
        )
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise SourceError(not_installed("scikit-learn", "classify")) from None
    found = KMeans(len(names), n_init=50, random_state=0).fit(points).cluster_centers_
    ordered = sorted(found.clip(0.0, 100.0).tolist(), key=lambda c: (c[0] - c[1], -c[1]))
    return {name: Utilisation(*centre) for name, centre in zip(names, ordered, strict=True)}
