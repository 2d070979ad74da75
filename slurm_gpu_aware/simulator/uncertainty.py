"""Comparison of runs over seeds: mean and range of each number, gains, and each job's own ratio.

All policies of a seed run the same jobs on the same GPUs, so they are compared in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slurm_gpu_aware.simulator.result import Mask, Result, compared, ended_in_all

_SMALL = 0.01
_SLOWER = 1e-3
"""A job is slower if its completion time is longer by more than this share."""


def over_seeds(seeds: Sequence[Sequence[Result]]) -> list[dict[str, Any]]:
    """Summary per policy, as `result.compared`, over one or several seeds.

    ``seeds``: per seed its results, in the same order of policies. Beside the keys of
    `Result.summary` (means over the seeds) a summary has ``range`` (key -> lowest and highest of
    the seeds), ``gain`` over the first simulated policy in average completion time (geometric mean,
    standard error, lowest, highest; shares), and `each_job` against it, over all seeds. Both are
    None for that policy, a record, and where no job ended in every run.
    """
    each = [compared(results) for results in seeds]
    first = first_simulated(seeds[0])
    masks = [ended_in_all(results) for results in seeds]
    summaries = []
    for position, same in enumerate(zip(*each, strict=True)):
        summary = {key: _mean([run[key] for run in same]) for key in same[0]}
        summary["range"] = {
            key: _range([run[key] for run in same]) for key in same[0] if _is_number(same[0][key])
        }
        own = [results[position] for results in seeds]
        base = [results[first] for results in seeds]
        other = position != first and not own[0].recorded and all(mask.any() for mask in masks)
        summary["gain"] = _gain(base, own, masks) if other else None
        summary["each_job"] = each_job(base, own, masks) if other else None
        summaries.append(summary)
    return summaries


def first_simulated(results: Sequence[Result]) -> int:
    """Position of the first run that is no record; 0 if all are."""
    return next((i for i, result in enumerate(results) if not result.recorded), 0)


def each_job(
    first: Sequence[Result], other: Sequence[Result], masks: Sequence[Mask]
) -> dict[str, float]:
    """Completion time of each job in ``other`` / in ``first``, one result and mask per seed.

    Returns the median, the 5th and 95th percentile, and the share of slower jobs.
    """
    pairs = zip(first, other, masks, strict=True)
    ratio = np.concatenate([b.jct_s(mask) / a.jct_s(mask) for a, b, mask in pairs])
    low, median, high = np.percentile(ratio, [5, 50, 95]).tolist()
    slower = float((ratio > 1.0 + _SLOWER).mean())
    return {"median": median, "p5": low, "p95": high, "slower": slower}


def as_good(gain: Mapping[str, float]) -> bool:
    """Whether a policy does not pay, as far as the seeds tell.

    Its gain has either sign among them, and is less than 1% or than two standard errors.
    """
    least = max(_SMALL, 2.0 * gain["error"])
    return gain["low"] <= 0.0 <= gain["high"] and abs(gain["mean"]) < least


def _gain(
    first: Sequence[Result], other: Sequence[Result], masks: Sequence[Mask]
) -> dict[str, float]:
    pairs = zip(first, other, masks, strict=True)
    ratios = np.array([b.jct_s(mask).mean() / a.jct_s(mask).mean() for a, b, mask in pairs])
    logs = np.log(ratios)
    mean, seeds = float(np.exp(logs.mean())), len(ratios)
    error = mean * float(logs.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else 0.0
    low, high = 1.0 - float(ratios.max()), 1.0 - float(ratios.min())
    return {"mean": 1.0 - mean, "error": error, "low": low, "high": high}


def _mean(values: Sequence[Any]) -> Any:
    """Mean over the seeds, a geometric one of ratios; None if a value is; texts as they are."""
    if isinstance(values[0], dict):
        keys = [key for key in values[0] if all(key in value for value in values)]
        return {key: _geometric([value[key] for value in values]) for key in keys}
    if any(value is None for value in values) or not _is_number(values[0]):
        return values[0] if len(set(values)) == 1 else None
    mean = float(np.mean(values))
    return int(mean) if mean.is_integer() and isinstance(values[0], int) else mean


def _geometric(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return float(np.exp(np.log(known).mean())) if min(known) > 0 else float(np.mean(known))


def _range(values: Sequence[Any]) -> list[float] | None:
    return None if any(value is None for value in values) else [min(values), max(values)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
