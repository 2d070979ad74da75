"""PM scores: times of GPUs for a class relative to the median GPU (PAL, section III)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray

__all__ = ["combine_runs", "pm_scores"]


def pm_scores(
    times_ms: npt.ArrayLike,
    groups: Sequence[str] | None = None,
    counted: npt.ArrayLike | None = None,
) -> FloatArray:
    """PM score of each GPU: its time divided by the median GPU's time (PAL [1]_).

    Parameters
    ----------
    times_ms : (n,) one time per GPU for one class, > 0; :func:`combine_runs` combines repeats.
    groups : n labels; the median is taken over GPUs with the same label. None: one group.
    counted : (n,) whether a GPU counts for the median. None, or none in a group: all GPUs count.

    Returns
    -------
    (n,) scores, lower is better, 1.0 = the median GPU, 1.5 = 50% slower.

    Raises
    ------
    ValueError
        A time is NaN, infinite or not positive, or the lengths differ.

    Notes
    -----
    With GPU models as ``groups``, the default of callers, a score compares a GPU with others of its
    model. With one median over all models (``groups=None``) scores also rank the models, and class
    A takes the newest GPUs first. Within one model the order of the L x V matrix is the same.

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
    times = _checked(times_ms)
    labels = [""] * times.size if groups is None else groups
    counts = np.ones(times.size, dtype=np.bool_)
    if counted is not None:
        counts = np.asarray(counted, dtype=np.bool_)
    for what, given in (("group labels", len(labels)), ("GPUs counted or not", counts.size)):
        if given != times.size:
            raise ValueError(f"{times.size} times but {given} {what}")
    _, label = np.unique(np.asarray(labels, dtype=np.str_), return_inverse=True)
    scores = np.empty_like(times)
    for group in range(int(label.max()) + 1 if times.size else 0):
        members = label == group
        known = members & counts if (members & counts).any() else members
        scores[members] = times[members] / np.median(times[known])
    return scores


def combine_runs(
    gpu: npt.ArrayLike, times_ms: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """One time per GPU from repeated runs: the median of its runs.

    The median removes transients of a node: on Longhorn one run is 3.6x the median on a GPU with a
    median of 0.98.

    Parameters
    ----------
    gpu : (m,) GPU number of each run.
    times_ms : (m,) times > 0.

    Returns
    -------
    (n,) distinct GPU numbers, ascending, and (n,) medians.
    """
    times = _checked(times_ms)
    which = np.asarray(gpu, dtype=np.int64)
    if which.shape != times.shape:
        raise ValueError(f"{times.size} times but {which.size} GPU numbers")
    order = np.lexsort((times, which))
    ids, start, count = np.unique(which[order], return_index=True, return_counts=True)
    ordered = times[order]
    middle = (ordered[start + (count - 1) // 2] + ordered[start + count // 2]) / 2.0
    return ids, middle


def _checked(times_ms: npt.ArrayLike) -> FloatArray:
    times = np.asarray(times_ms, dtype=np.float64)
    if times.ndim != 1:
        raise ValueError(f"expected a flat list of times, not shape {times.shape}")
    if not bool(np.all(np.isfinite(times) & (times > 0.0))):
        raise ValueError("times must be finite and more than 0")
    return times
