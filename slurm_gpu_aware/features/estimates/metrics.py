"""Metrics of predictions: slowdown and run time, as predicted and as they came."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.features.estimates.live import run_of
from slurm_gpu_aware.metric import Fact, Metric, Sample, one
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ledger import Ledger

_DAY_S = 86_400.0
_MOST = 5_000
_QUANTILES = {"median": 0.5, "p90": 0.9}


class Run(NamedTuple):
    """A job that ended, and that had an estimate when it was placed."""

    predicted: float  # Slowdown L x V of the decision.
    actual: float  # Run time divided by the estimate for the median GPU.


def _read(store: Store, now: float) -> list[Run]:
    found = []
    for decision in Ledger(store).ended_decisions(now - _DAY_S, _MOST):
        estimate, run = decision.why.get("estimate"), run_of(decision)
        seconds = estimate.get("seconds") if isinstance(estimate, Mapping) else None
        if run is not None and isinstance(seconds, int | float) and seconds > 0:
            found.append(Run(decision.slowdown, (run.end_s - run.start_s) / seconds))
    return found


def _slowdowns(runs: Sequence[Run]) -> Iterator[Sample]:
    for kind in Run._fields if runs else ():
        values = [getattr(run, kind) for run in runs]
        yield Sample((kind, "mean"), float(np.mean(values)))
        for name, share in _QUANTILES.items():
            yield Sample((kind, name), float(np.quantile(values, share)))


DAY = Fact("predictions of a day", ("store", "now"), _read, lambda store, now: int(now // 60))

METRICS = (
    Metric(
        "gpu_aware_day_slowdown_ratio",
        "Slowdown of the jobs that ended in the last 24 hours, had an estimate and were placed"
        f" (the newest {_MOST}): predicted (L x V), and actual (run time / estimate for the median"
        " GPU); mean, median, p90.",
        "gauge",
        DAY,
        _slowdowns,
        ("kind", "statistic"),
    ),
    Metric(
        "gpu_aware_day_predicted_jobs",
        "Jobs that these numbers are of.",
        "gauge",
        DAY,
        lambda runs: one(len(runs)),
    ),
)
