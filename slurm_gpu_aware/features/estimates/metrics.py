"""Predictions of slowdown and run time against what came: their quality, and metrics of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from slurm_gpu_aware.features.estimates.live import run_of
from slurm_gpu_aware.metric import Fact, Metric, Sample, one
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ledger import Decision, Ledger

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


_SOURCES = ("name", "user", "account", "limit")
_LATE_S = 60.0  # Slurm ends a job up to a minute after its limit; the ledger notes ends in rounds


class _Compared(NamedTuple):
    """A job that has ended, against what was expected. Units: s."""

    user: str
    source: str
    ran: float
    expected: float
    limit: float


def _compared(decisions: Iterable[Decision]) -> Iterator[_Compared]:
    """The jobs with estimates. A run after a requeue may be the rest of one, so it is left out."""
    for decision in decisions:
        estimate, run = decision.why.get("estimate"), run_of(decision)
        if not isinstance(estimate, Mapping) or run is None or not estimate.get("seconds"):
            continue
        if decision.restarts:
            continue
        limit = float(estimate.get("limit_s") or np.inf)
        expected = min(float(estimate["seconds"]) * decision.slowdown, limit)
        source, ran = str(estimate.get("source")), run.end_s - run.start_s
        yield _Compared(decision.user, source, ran, expected, limit)


def quality(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """One row per source of estimates, and ``all`` last; empty: no job had an estimate.

    ``median``, ``p10``, ``p90``: quantiles of run time / expected run time, which is the estimate
    times the predicted slowdown, at most the limit. ``within``: share that ended within it.
    ``median_of_limit``: median of run time / time limit; None: no job had a limit.
    """
    jobs = list(_compared(decisions))
    by_source = {name: [job for job in jobs if job.source == name] for name in _SOURCES}
    rows = [{"source": name, **_row(some)} for name, some in by_source.items() if some]
    return [*rows, {"source": "all", **_row(jobs)}] if jobs else []


def quality_by_user(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """One row per user, those with the most jobs first: the numbers of `quality`.

    ``cold``: jobs that were expected to take their limits, as no earlier run was like them; they
    are not in the other numbers, which are None if there is no other job.
    """
    by_user: dict[str, list[_Compared]] = {}
    for job in _compared(decisions):
        by_user.setdefault(job.user, []).append(job)
    rows = []
    for user, jobs in sorted(by_user.items(), key=lambda item: (-len(item[1]), item[0])):
        known = [job for job in jobs if job.source != "limit"]
        row = _row(known) if known else dict.fromkeys(("median", "p10", "p90", "within"))
        rows.append({"user": user, **row, "jobs": len(jobs), "cold": len(jobs) - len(known)})
    return rows


def _row(jobs: Sequence[_Compared]) -> dict[str, Any]:
    ran, expected, limit = np.array([job[2:] for job in jobs]).T
    p10, median, p90 = np.quantile(ran / expected, (0.1, 0.5, 0.9)).tolist()
    limited = np.isfinite(limit)
    return {
        "jobs": len(jobs),
        "median": median,
        "p10": p10,
        "p90": p90,
        "within": float(np.mean(ran <= expected + _LATE_S)),
        "median_of_limit": float(np.median((ran / limit)[limited])) if limited.any() else None,
    }
