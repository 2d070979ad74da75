"""PM scores: times of GPUs for a class relative to the median GPU (PAL, section III), and bins.

Application classes by sensitivity to compute variability (PAL, section III-A).

Scores of GPUs from finished jobs: how long jobs ran on them, against jobs of the same kind.

They are weaker than a sweep's: input data differ from job to job, and a job on several GPUs is as
slow as the slowest one, which is not known. So they are shown beside the sweep's.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.profile import Gpu, GpuScore, GpuTiming
from slurm_gpu_aware.variability.bins import bin_scores

K = TypeVar("K", bound=Hashable)
FEWEST_JOBS = 3


def pm_scores(
    times_ms: npt.ArrayLike,
    groups: Sequence[str] | None = None,
    counted: npt.ArrayLike | None = None,
) -> FloatArray:
    """PM score of each GPU: its time divided by the median GPU's time (PAL [1]_).

    Parameters
    ----------
    times_ms : (n,) one time per GPU for one class, finite, > 0 (:func:`run_medians`).
    groups : n labels; the median is taken over GPUs with the same label. None: one group.
    counted : (n,) whether a GPU counts for the median. None, or none in a group: all GPUs count.

    Returns
    -------
    (n,) scores, lower is better, 1.0 = the median GPU, 1.5 = 50% slower.

    Notes
    -----
    With GPU models as ``groups`` a score compares a GPU with others of its model. With one median
    over all models class A takes the newest GPUs first. The order within a model is the same.

    References
    ----------
    .. [1] Jain et al., "PAL: A Variability-Aware Policy for Scheduling ML Workloads in GPU
       Clusters", SC 2024.

    Examples
    --------
    >>> pm_scores([100.0, 110.0, 90.0]).tolist()
    [1.0, 1.1, 0.9]
    >>> pm_scores([100.0, 110.0, 50.0, 50.0], ["v100", "v100", "a100", "a100"]).round(3).tolist()
    [0.952, 1.048, 1.0, 1.0]
    """
    times = np.asarray(times_ms, dtype=np.float64)
    labels = np.asarray([""] * times.size if groups is None else groups, dtype=np.str_)
    counts = np.full(times.size, fill_value=True) if counted is None else np.asarray(counted)
    scores = np.empty_like(times)
    for label in np.unique(labels):
        members = labels == label
        known = members & counts if (members & counts).any() else members
        scores[members] = times[members] / np.median(times[known])
    return scores


def run_medians(gpus: Sequence[K], times_ms: npt.ArrayLike) -> dict[K, float]:
    """GPU -> median time of its runs, in the order of their first runs.

    The median removes transients of a node: on Longhorn one run is 3.6x the median on a GPU with a
    median of 0.98.

    Parameters
    ----------
    gpus : GPU of each of the m runs.
    times_ms : (m,) times > 0.
    """
    number: dict[K, int] = {}
    which = np.array([number.setdefault(gpu, len(number)) for gpu in gpus], dtype=np.int64)
    times = np.asarray(times_ms, dtype=np.float64)
    ordered = times[np.lexsort((times, which))]
    count = np.bincount(which)
    start = np.cumsum(count) - count
    middle = (ordered[start + (count - 1) // 2] + ordered[start + count // 2]) / 2.0
    return dict(zip(number, middle.tolist(), strict=True))


def median_runs(runs: Sequence[GpuTiming]) -> list[GpuTiming]:
    """The median of the runs of each GPU and class, in the order of their first runs."""
    medians = run_medians([run[:3] for run in runs], [run.value_ms for run in runs])
    first = {run[:3]: run for run in reversed(runs)}
    return [first[key]._replace(value_ms=value) for key, value in medians.items()]


def scores_of_gpus(
    timings: Sequence[GpuTiming],
    classes: Iterable[str] | None = None,
    *,
    unseen: Set[Gpu] = frozenset(),
    reference: str = "model",
) -> list[GpuScore]:
    """PM scores and bins of each GPU and class.

    Parameters
    ----------
    timings : one per GPU and class.
    classes : the classes to score; None: all with timings.
    unseen : GPUs that no probe has seen. They do not count for the median and have separate bins,
        so they change no score of another GPU.
    reference : ``model``: scores are relative to the median GPU of the same model and board.
        ``cluster``: to the median over all models, so that scores also rank the models.
    """
    of_class: dict[str, list[GpuTiming]] = {}
    for timing in timings:
        of_class.setdefault(timing.app_class, []).append(timing)
    wanted = sorted(of_class if classes is None else set(classes) & of_class.keys())
    return [score for name in wanted for score in _scored(of_class[name], unseen, reference)]


def _scored(rows: Sequence[GpuTiming], unseen: Set[Gpu], reference: str) -> list[GpuScore]:
    """Scores of one class."""
    seen = [row[:2] not in unseen for row in rows]
    groups = [" ".join(row[5:]) for row in rows] if reference == "model" else None
    raw = pm_scores([row.value_ms for row in rows], groups, seen)
    kinds = [(*row[5:], known) for row, known in zip(rows, seen, strict=True)]
    scores: list[GpuScore] = []
    for kind in sorted(set(kinds)):
        members = [i for i, other in enumerate(kinds) if other == kind]
        binning = bin_scores(raw[members])
        scores += [
            GpuScore(
                *rows[i][:4],
                raw=float(raw[i]),
                binned=float(binning.scores[at]),
                bin=int(binning.labels[at]),
                outlier=int(binning.outlier[at]),
                taken_at=rows[i].taken_at,
                model=rows[i].model or None,
            )
            for at, i in enumerate(members)
        ]
    return scores


@dataclass(frozen=True)
class Utilisation:
    """GPU utilisation of an application. Units: percent of peak, 0..100."""

    dram: float  # DRAM bandwidth.
    peak_fu: float  # The busiest functional unit (FP32, FP64, FP16, tensor, ...).

    def __post_init__(self) -> None:
        for value in (self.dram, self.peak_fu):
            if not 0.0 <= value <= 100.0:
                raise ValueError(f"utilisation must be 0..100 percent, not {value!r}")


Centres = Mapping[str, Utilisation]  # Class -> its centre, most compute bound first.


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


class JobRun(NamedTuple):
    """A finished job."""

    app_class: str
    kind: Hashable
    """Jobs of one kind do the same work: same user, name, number of GPUs and nodes, model."""
    gpus: Sequence[Gpu]
    run_s: float  # > 0


class JobScore(NamedTuple):
    """Score of a GPU from jobs."""

    node: str
    slot: int
    app_class: str
    score: float  # Median over the jobs of run time over the median of the kind; 1.1 = 10% slower.
    jobs: int


def job_scores(runs: Iterable[JobRun]) -> list[JobScore]:
    """Scores of the GPUs with 3 jobs or more of a class, of kinds with 3 jobs or more.

    The run time of a job counts for each of its GPUs. Sorted by class, node and GPU.
    """
    kinds: dict[Hashable, list[JobRun]] = {}
    for run in runs:
        kinds.setdefault((run.app_class, run.kind), []).append(run)
    ratios: dict[tuple[str, str, int], list[float]] = {}
    for own in kinds.values():
        if len(own) < FEWEST_JOBS:
            continue
        middle = median(run.run_s for run in own)
        for run in own:
            for node, slot in run.gpus:
                ratios.setdefault((run.app_class, node, slot), []).append(run.run_s / middle)
    return [
        JobScore(node, slot, app_class, median(found), len(found))
        for (app_class, node, slot), found in sorted(ratios.items())
        if len(found) >= FEWEST_JOBS
    ]
