"""Scores of a cluster's GPUs: PM scores, and bins per class and model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from slurm_gpu_aware.model.profile import Gpu, GpuScore, GpuTiming
from slurm_gpu_aware.variability.bins import bin_scores
from slurm_gpu_aware.variability.scores import combine_runs, pm_scores

__all__ = ["REFERENCES", "median_runs", "scores_of_gpus"]

REFERENCES = ("model", "cluster")
"""``model``: scores are relative to the median GPU of the model. ``cluster``: to the median over
all models, so that scores also rank the models."""


def median_runs(runs: Iterable[GpuTiming]) -> list[GpuTiming]:
    """The median of the runs of each GPU and class, in the order of their first runs."""
    first: dict[tuple[str, int, str], GpuTiming] = {}
    number: dict[tuple[str, int, str], int] = {}
    which, values = [], []
    for run in runs:
        key = run[:3]
        first.setdefault(key, run)
        which.append(number.setdefault(key, len(number)))
        values.append(run.value_ms)
    _, medians = combine_runs(which, values)
    pairs = zip(first.values(), medians.tolist(), strict=True)
    return [timing._replace(value_ms=value) for timing, value in pairs]


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
    reference : one of ``REFERENCES``.
    """
    of_class: dict[str, list[GpuTiming]] = {}
    for timing in timings:
        of_class.setdefault(timing.app_class, []).append(timing)
    wanted = sorted(of_class if classes is None else set(classes) & of_class.keys())
    return [score for name in wanted for score in _scored(of_class[name], unseen, reference)]


def _scored(rows: Sequence[GpuTiming], unseen: Set[Gpu], reference: str) -> list[GpuScore]:
    """Scores of one class."""
    seen = [row[:2] not in unseen for row in rows]
    groups = [row.model for row in rows] if reference == "model" else None
    raw = pm_scores([row.value_ms for row in rows], groups, seen)
    kinds = [(row.model, known) for row, known in zip(rows, seen, strict=True)]
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
