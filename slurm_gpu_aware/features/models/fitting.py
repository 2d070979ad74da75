"""Fit of a performance model to measured samples, and its error on held-out ones.

Times and powers are fitted together, because the clock that the power limit lets a GPU keep shows
in both; a sample without a time counts with its power. Errors are those of predictions for
conditions that the fit has not seen: single coefficients are not identifiable from such data,
predictions are.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slurm_gpu_aware.bounds import MAX_GPUS, MAX_MHZ
from slurm_gpu_aware.features.models.least_squares import (
    Prior,
    fit_coefficients,
    power_coefficients,
    throughput_coefficients,
)
from slurm_gpu_aware.features.models.performance_model import (
    NOT_LOCKED,
    Anchor,
    MeasuredRange,
    PerformanceModel,
    PerformanceSample,
    PowerParameters,
    Quality,
    gpu_power,
    kept_clocks,
)
from slurm_gpu_aware.features.models.throughput import (
    Conditions,
    ThroughputParameters,
    iteration_times,
)
from slurm_gpu_aware.model.arrays import FloatArray, IntArray

_Curves = tuple[ThroughputParameters, PowerParameters]
_FOLDS = 10
_REFITS = 2
_TESTABLE = 3  # Conditions below which nothing can be held out.
_WORST = 1e3  # Relative error of a prediction beyond which it does not matter how wrong it is.
_HOPELESS = 0.5
"""Mean relative error of a fit for its own measurements above which it is no model. It is not
tested: that takes ten more fits, and longest where the measurements contradict each other."""
_LEAST_S, _MOST_S = 1e-9, 1e9
_MOST_W = 1e9


def fit_model(
    samples: Sequence[PerformanceSample],
    prior: Prior,
    reference_mhz: float,
    *,
    name: str,
    gpu_model: str,
) -> PerformanceModel:
    """Fit a model to the samples of one application or class on one GPU model.

    ``reference_mhz``: the clock at which a GPU runs by default (its maximum). Samples that are not
    usable are left out. Raises ValueError if none with a time is left, or if no model fits them.
    """
    usable = merged([s for s in samples if is_usable(s)])
    if not any(is_timed(s) for s in usable):
        raise ValueError(f"{name} on {gpu_model}: no usable sample")
    throughput, power = _fit(usable, prior, reference_mhz)
    error = max(_mean_error(ratio) or 0.0 for ratio in _ratios(throughput, power, usable))
    if error > _HOPELESS:
        raise ValueError(f"the best fit is wrong by {100 * error:.0f}% for what was measured")
    measured = _range(usable, prior)
    quality = held_out(usable, prior, reference_mhz)
    anchors = _anchors(throughput, power, usable)
    return PerformanceModel(name, gpu_model, throughput, power, quality, measured, anchors)


def _anchors(
    throughput: ThroughputParameters,
    power: PowerParameters,
    samples: Sequence[PerformanceSample],
) -> tuple[Anchor, ...]:
    """What was measured in the commonest number of GPUs, nodes and batch size."""
    timed = [s for s in samples if is_timed(s)]
    common = Counter(s[:3] for s in timed).most_common(1)[0][0]
    own = [s for s in timed if s[:3] == common]
    time, watts = _ratios(throughput, power, own)
    watts = np.where(np.isnan(watts), 1.0, watts)
    kept = _kept(own, throughput, power)
    return tuple(
        Anchor(
            *(k.clock_mhz, float(1.0 / t), float(1.0 / w), s.limit_w),
            locked_mhz=s.clock_mhz if s.limit_w else NOT_LOCKED,
        )
        for s, k, t, w in zip(own, kept, time, watts, strict=True)
    )


def is_timed(sample: PerformanceSample) -> bool:
    """Whether the sample has a time, not only a power."""
    return not math.isnan(sample.time_s)


def is_usable(sample: PerformanceSample) -> bool:
    """Whether it has a time or a power, and all values are finite and within bounds."""
    s = sample
    return (
        1 <= s.nodes <= s.gpus <= MAX_GPUS
        and 1e-9 <= s.batch_size <= 1e12
        and 1.0 <= s.clock_mhz <= MAX_MHZ
        and (_LEAST_S <= s.time_s <= _MOST_S if is_timed(s) else s.power_w is not None)
        and (s.power_w is None or 1e-3 <= s.power_w <= _MOST_W)
    )


def merged(samples: Sequence[PerformanceSample]) -> list[PerformanceSample]:
    """One sample per condition, sorted: the medians of its times and of its powers."""
    of: dict[tuple[float, ...], list[PerformanceSample]] = {}
    for sample in samples:
        of.setdefault((*sample[:4], sample.limit_w), []).append(sample)
    result = []
    for key in sorted(of):
        times = [s.time_s for s in of[key] if is_timed(s)]
        powers = [s.power_w for s in of[key] if s.power_w is not None]
        time = float(np.median(times)) if times else math.nan
        power = float(np.median(powers)) if powers else None
        result.append(of[key][0]._replace(time_s=time, power_w=power))
    return result


def conditions_of(samples: Sequence[PerformanceSample]) -> Conditions:
    """The conditions of one or more samples, arrays of shape (len(samples),)."""
    gpus, nodes, batch_size, clock_mhz = np.array([s[:4] for s in samples], dtype=np.float64).T
    return Conditions(gpus, nodes, batch_size, clock_mhz)


def _fit(samples: Sequence[PerformanceSample], prior: Prior, reference_mhz: float) -> _Curves:
    """At least one sample has a time. The clocks that power limits leave settle by refits."""
    curves = _curves(samples, prior, reference_mhz)
    for _ in range(_REFITS if any(s.limit_w for s in samples) else 0):
        curves = _curves(_kept(samples, *curves), prior, reference_mhz)
    return curves


def _kept(
    samples: Sequence[PerformanceSample], throughput: ThroughputParameters, power: PowerParameters
) -> Sequence[PerformanceSample]:
    """The samples at the clocks that their power limits leave by these curves."""
    limits_w = np.array([s.limit_w for s in samples])
    if not limits_w.any():
        return samples
    kept = kept_clocks(throughput, power, conditions_of(samples), limits_w)
    return [s._replace(clock_mhz=float(mhz)) for s, mhz in zip(samples, kept, strict=True)]


def _curves(samples: Sequence[PerformanceSample], prior: Prior, reference_mhz: float) -> _Curves:
    """At least one sample has a time; each counts at its clock."""
    at = conditions_of(samples)
    with_time = [s for s in samples if is_timed(s)]
    timed = np.flatnonzero([is_timed(s) for s in samples])
    log_times = np.log([s.time_s for s in with_time])
    powered, log_powers = _powers(samples)
    batch = float(np.median(at.batch_size))
    of_time = throughput_coefficients(with_time, prior)
    of_power = power_coefficients(samples, prior, reference_mhz)

    coefficients = [*of_time, *(of_power if len(powered) else ())]

    def parts(values: Mapping[str, Any]) -> _Curves:
        all_values = {c.name: c.prior for c in of_power} | dict(values)
        time, watts = ({c.name: all_values[c.name] for c in own} for own in (of_time, of_power))
        return (
            ThroughputParameters(**time, reference_mhz=reference_mhz),
            PowerParameters(**watts, reference_batch=batch),
        )

    def log_errors(values: Mapping[str, FloatArray]) -> FloatArray:
        throughput, power = parts(values)
        times = iteration_times(throughput, at)
        errors = np.log(times.total[:, timed]) - log_times
        if not len(powered):
            return errors
        watts = gpu_power(power, times, at.batch_size)
        return np.hstack((errors, np.log(watts[:, powered]) - log_powers))

    return parts(fit_coefficients(log_errors, coefficients))


def _powers(samples: Sequence[PerformanceSample]) -> tuple[IntArray, FloatArray]:
    """Positions of the samples with power, and the logarithms of the W of each of their GPUs."""
    found = [(i, s.power_w / s.gpus) for i, s in enumerate(samples) if s.power_w is not None]
    positions = np.array([i for i, _ in found], dtype=np.int64)
    return positions, np.log(np.array([watts for _, watts in found], dtype=np.float64))


def _range(samples: Sequence[PerformanceSample], prior: Prior) -> MeasuredRange:
    """Ranges of what has a time: power alone says of no number of GPUs how fast it is."""
    at = conditions_of([s for s in samples if is_timed(s)])
    lows = [float(at.clock_mhz.min()), *([] if prior.low_mhz is None else [prior.low_mhz])]
    return MeasuredRange(
        least_gpus=int(at.gpus.min()),
        most_gpus=int(at.gpus.max()),
        low_mhz=min(lows),
        high_mhz=float(at.clock_mhz.max()),
        batch_size=float(np.median(at.batch_size)),
        global_batch=float(np.median(at.batch_size * at.gpus)),
    )


def held_out(
    samples: Sequence[PerformanceSample], prior: Prior, reference_mhz: float, folds: int = _FOLDS
) -> Quality:
    """Errors on samples that are left out of their own fit, one of at most ``folds`` fits.

    ``samples``: one per condition (`merged`), sorted; neighbours are left out of different fits.
    Times too few to be tested stay in all fits, so that the powers are.
    """
    # Those with a time come first: no fold has all of them.
    samples = sorted(samples, key=lambda s: not is_timed(s))
    with_time = sum(map(is_timed, samples))
    with_power = sum(s.power_w is not None for s in samples)
    if max(with_time, with_power) < _TESTABLE:
        return Quality(with_time, with_power)
    time, power, slowed = [], [], []  # predicted / measured; whether a limit lowers the clock
    folds = min(folds, len(samples))
    for fold in range(folds):
        own = samples[fold::folds]
        rest = [s for i, s in enumerate(samples) if i % folds != fold]
        if with_time < _TESTABLE:
            rest += [s._replace(power_w=None) for s in own if is_timed(s)]
        curves = _fit(rest, prior, reference_mhz)
        of_time, of_power = _ratios(*curves, own)
        time.append(of_time)
        power.append(of_power)
        kept = _kept(own, *curves)
        slowed += [k.clock_mhz < s.clock_mhz for s, k in zip(own, kept, strict=True)]
    ratios = np.concatenate(time), np.concatenate(power)
    kinds = (*ratios, ratios[0] * ratios[1], ratios[0][np.array(slowed)])
    return Quality(with_time, with_power, *map(_mean_error, kinds))


def _ratios(
    throughput: ThroughputParameters, power: PowerParameters, samples: Sequence[PerformanceSample]
) -> tuple[FloatArray, FloatArray]:
    """Predicted / measured time and power of each sample; NaN: not measured."""
    at = conditions_of(_kept(samples, throughput, power))
    times = iteration_times(throughput, at)
    watts = at.gpus * gpu_power(power, times, at.batch_size)
    measured_w = [math.nan if s.power_w is None else s.power_w for s in samples]
    return times.total / [s.time_s for s in samples], watts / measured_w


def _mean_error(ratio: FloatArray) -> float | None:
    """Mean absolute relative error of predicted / measured; None: too few are measured, not NaN."""
    known = ratio[~np.isnan(ratio)]
    if len(known) < _TESTABLE:
        return None
    return float(np.minimum(np.abs(known - 1.0), _WORST).mean())
