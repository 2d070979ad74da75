"""Scores of the store: computed from its timings and written back."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.inventory import unseen_gpus
from slurm_gpu_aware.store.profiles import put_scores, score_reference
from slurm_gpu_aware.store.times import newest_runs
from slurm_gpu_aware.variability.outliers import Outlier, outliers
from slurm_gpu_aware.variability.scores import REFERENCES, median_runs, scores_of_gpus

__all__ = ["newest_timings", "recompute_scores", "stored_outliers"]


def newest_timings(store: Store) -> list[GpuTiming]:
    """The newest measurement of each GPU and class: the median of its runs."""
    return median_runs(newest_runs(store))


def recompute_scores(
    store: Store, classes: Sequence[str] | None = None, *, reference: str | None = None
) -> int:
    """Recompute PM scores and bins from the newest timings; return the number of scores.

    Parameters
    ----------
    classes : the site's classes; scores of other classes are deleted. None: all classes with
        timings.
    reference : ``model`` (the default) or ``cluster``, see ``variability.scores``. The store
        keeps it; None: the stored one.
    """
    timings = newest_timings(store)
    chosen = reference or score_reference(store) or REFERENCES[0]
    unseen = unseen_gpus(store, (timing[:2] for timing in timings))
    scores = scores_of_gpus(timings, classes, unseen=unseen, reference=chosen)
    put_scores(store, scores, reference)
    return len(scores)


def stored_outliers(store: Store) -> list[Outlier]:
    """All GPUs of the store whose newest time is an outlier. Raises StoreError."""
    timings = newest_timings(store)
    return outliers(timings, unseen_gpus(store, (timing[:2] for timing in timings)))
