"""Quality of estimates: run times of ended jobs against what the ledger expected of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from slurm_gpu_aware.features.estimates.reader import run_of
from slurm_gpu_aware.store.ledger import Decision

_SOURCES = ("name", "user", "account", "limit")
_LATE_S = 60.0  # Slurm ends a job up to a minute after its limit; the ledger notes ends in rounds


def quality(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """One row per source of estimates, and ``all`` last; empty: no job had an estimate.

    ``median``, ``p10``, ``p90``: quantiles of run time / expected run time, which is the estimate
    times the predicted slowdown, at most the limit. ``within``: share that ended within it.
    ``median_of_limit``: median of run time / time limit; None: no job had a limit.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for decision in decisions:
        estimate, run = decision.why.get("estimate"), run_of(decision)
        if not isinstance(estimate, Mapping) or run is None or not estimate.get("seconds"):
            continue
        limit = float(estimate.get("limit_s") or np.inf)
        expected = min(float(estimate["seconds"]) * decision.slowdown, limit)
        source = str(estimate.get("source"))
        found.setdefault(source, []).append((run.end_s - run.start_s, expected, limit))
    rows = [_row(source, found[source]) for source in _SOURCES if source in found]
    return [*rows, _row("all", [job for some in found.values() for job in some])] if rows else []


def _row(source: str, jobs: list[tuple[float, float, float]]) -> dict[str, Any]:
    ran, expected, limit = np.array(jobs).T
    p10, median, p90 = np.quantile(ran / expected, (0.1, 0.5, 0.9)).tolist()
    limited = np.isfinite(limit)
    return {
        "source": source,
        "jobs": len(jobs),
        "median": median,
        "p10": p10,
        "p90": p90,
        "within": float(np.mean(ran <= expected + _LATE_S)),
        "median_of_limit": float(np.median((ran / limit)[limited])) if limited.any() else None,
    }
