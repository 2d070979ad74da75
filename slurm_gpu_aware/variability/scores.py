"""PM scores: times of GPUs for a class relative to the median GPU (PAL, section III), and bins."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.profile import Gpu, GpuScore, GpuTiming
from slurm_gpu_aware.variability.bins import bin_scores

K = TypeVar("K", bound=Hashable)


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
