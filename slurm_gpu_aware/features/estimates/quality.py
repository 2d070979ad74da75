"""Quality of estimates: run times of ended jobs against what the ledger expected of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from slurm_gpu_aware.features.estimates.live import run_of
from slurm_gpu_aware.store.ledger import Decision

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
