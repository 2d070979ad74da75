"""GPUs that are slower than their peers, or than they were, by statistics over repeated sweeps.

The time of GPU ``i`` in sweep ``e`` is, as a logarithm, ``x = level_i + shift_e + noise``: GPUs of
one model and class differ by a level, and a driver or a warm day shifts all of them. Both are found
by median polish [1]_, which takes missing values, so GPUs that were busy in a sweep do no harm. Of
an even number of values the lower one in the middle counts: with half of the GPUs slow, the others
are the reference.

A GPU is **slow** if the median of its newest three sweeps is above its peers by more than a
threshold, and each of the three by more than half of it. It is **drifted** if it is so above its
own earlier level. The threshold is a quantile
of Student's t times a scale. The scale of levels is the median absolute deviation on the fast side
of the median (slow GPUs do not widen it), combined with the repeatability of the GPUs as a prior,
as moderated t statistics do [2]_, so that few GPUs suffice. The repeatability is the median of the
differences of successive sweeps of one GPU, pooled over the group; a GPU that repeats worse has
its own.

The quantile is ``FALSE_NAMES`` over the number of tests in a pass (Bonferroni): with normal noise a
pass over the whole fleet names a well GPU with at most this probability, and so ``n`` passes with
at most ``n`` times that. That all three sweeps must agree also bounds noise that is not normal:
two disturbed sweeps of three name no GPU whose third one is as always.

A GPU that was named is well again only if its newest three sweeps are all below the threshold, and
their median is below half of it.

References
----------
.. [1] J. W. Tukey, "Exploratory Data Analysis", 1977, chapter 11.
.. [2] G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential
   expression in microarray experiments", Stat. Appl. Genet. Mol. Biol. 3(1), 2004.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.store.watch_state import Named

FALSE_NAMES = 1e-3  # Expected number of well GPUs that a pass names, with normal noise.
NEWEST = 3  # Sweeps that must agree.
LEAST = 0.01  # Relative difference that is never slow or drifted.
FEWEST_GPUS = 3  # With fewer GPUs of a model none of them is the reference.
_FLOOR = 0.001  # Repeatability (standard deviation of one sweep) that is never undercut.
_NATURAL = 0.003  # Spread of the levels of well GPUs that the prior assumes beside the noise.
_PRIOR = 16.0  # Degrees of freedom of the prior.
_OF_MAD = 0.37  # Efficiency of the median absolute deviation: degrees of freedom per value.
_NORMAL_MAD = 0.674490  # Median of the absolute value of a standard normal variable.
_MEDIAN_OF_3 = 0.449  # Variance of the median of three standard normal values.
_OWN_STEPS = 6  # Differences from which on the repeatability of a single GPU counts.
_PER_SWEEP = 64  # GPUs after which a sweep may end when one of them occurs again.
_POLISHES = 4

Key = tuple[str, int, str]  # (node, Slurm's index, class).


class History(NamedTuple):
    """Measurements of one GPU for a class."""

    node: str
    slot: int
    app_class: str
    group: str  # Model, board and benchmark: only GPUs of one group are peers.
    times: Sequence[tuple[float, float]]
    """(Unix time, ms) of each sweep, oldest first; ms: median of its runs, more than 0."""

    @property
    def key(self) -> Key:
        """What a verdict is remembered by."""
        return self[:3]


@dataclass(frozen=True)
class Verdict:
    """What the sweeps say of a GPU for a class."""

    key: Key
    state: str  # ``well``, ``slow``, ``drifted`` or ``unknown``.
    sweeps: int  # Measurements that are known; fewer than `NEWEST`: unknown.
    slower: float | None
    """Relative: 0.03 = 3% slower than the peers, by the median of the newest sweeps; negative:
    faster. None: too few GPUs."""
    threshold: float
    """Relative difference that noise and the spread of the GPUs explain; inf: not known."""
    risen: float | None  # Relative rise over its own earlier level; None: too few earlier sweeps.
    risen_threshold: float
    since: float | None
    """Unix time of the first sweep that was beyond; None: not slow and not drifted."""
    before: float = 0.0  # As in `Named`.


def verdicts(
    histories: Iterable[History], known: Mapping[Key, Named] | None = None
) -> list[Verdict]:
    """Judge all GPUs, in the order of ``histories``, in O(M log M) for M measurements.

    ``known``: what the pass before named; such a GPU must get well again by more than noise.
    """
    named = known or {}
    groups: dict[tuple[str, str], list[History]] = {}
    everything = [one for one in histories if one.times]
    for one in everything:
        groups.setdefault((one.app_class, one.group), []).append(one)
    level = FALSE_NAMES / max(1, 2 * len(everything))  # each GPU is tested twice
    found: dict[Key, Verdict] = {}
    for own in groups.values():
        judged = _too_few(own) if len(own) < FEWEST_GPUS else _judged(own, named, level)
        found |= {verdict.key: verdict for verdict in judged}
    return [found[one.key] for one in everything]


def _too_few(own: Sequence[History]) -> list[Verdict]:
    nothing = (None, math.inf, None, math.inf, None)
    return [Verdict(one.key, "unknown", len(one.times), *nothing) for one in own]


def _judged(own: Sequence[History], named: Mapping[Key, Named], level: float) -> list[Verdict]:
    """Verdicts of one group."""
    residuals = _without_shifts(own)
    steps = [np.abs(np.diff(values)) for values in residuals]
    pooled = max(_FLOOR, _deviation(np.concatenate(steps)))
    noises = [max(pooled, _own_noise(found, pooled)) for found in steps]
    newest = [values[-NEWEST:] for values in residuals]
    levels = np.array([float(np.median(values)) for values in newest])
    centre = float(lower_median(levels))
    scale, freedom = _scale(levels - centre, pooled)
    quantile = float(stdtrit(freedom, 1.0 - level))
    count = sum(map(len, steps)) * _OF_MAD + _PRIOR
    of_drift = float(stdtrit(count, 1.0 - level))
    judged = []
    for one, values, noise in zip(own, residuals, noises, strict=True):
        extra = _MEDIAN_OF_3 * (noise**2 - pooled**2)
        threshold = max(math.log1p(LEAST), quantile * math.sqrt(scale**2 + extra))
        spread = noise * math.sqrt(_MEDIAN_OF_3 + _of_median(len(values) - NEWEST))
        rise = max(math.log1p(LEAST), of_drift * spread)
        judged.append(_verdict(one, values - centre, threshold, rise, named.get(one.key)))
    return judged


def _verdict(
    one: History, values: FloatArray, threshold: float, rise: float, named: Named | None
) -> Verdict:
    """``values``: logarithm of each time over the peers, oldest first."""
    newest, earlier = values[-NEWEST:], values[:-NEWEST]
    level = float(np.median(newest))
    before = float(lower_median(earlier)) if len(earlier) >= NEWEST else None
    if named is not None and named.state == "drifted":
        before = named.before
    state = "well"
    if len(values) < NEWEST:
        state = "unknown"
    elif _beyond(newest, threshold, again=named is not None and named.state == "slow"):
        state = "slow"
    elif before is not None and _beyond(
        newest - before, rise, again=named is not None and named.state == "drifted"
    ):
        state = "drifted"
    since = None
    if state in ("slow", "drifted"):
        over = values - threshold / 2.0
        if state == "drifted":
            over = values - (before or 0.0) - rise / 2.0
        since = named.since if named is not None else _first(one.times, over)
    return Verdict(
        one.key,
        state,
        len(values),
        math.expm1(level),
        math.expm1(threshold),
        None if before is None else math.expm1(level - before),
        math.expm1(rise),
        since,
        before or 0.0,
    )


def _beyond(newest: FloatArray, threshold: float, *, again: bool) -> bool:
    """Whether all are beyond; ``again``: whether a GPU that was named is not well yet."""
    if again:
        return bool(newest.max() >= threshold or np.median(newest) > threshold / 2.0)
    return bool(np.median(newest) > threshold and newest.min() > threshold / 2.0)


def _first(times: Sequence[tuple[float, float]], over: FloatArray) -> float:
    """Time of the first of the last sweeps that are all beyond."""
    below = np.flatnonzero(over <= 0.0)
    first = int(below[-1]) + 1 if len(below) else 0
    return times[min(first, len(times) - 1)][0]


def _scale(deviations: FloatArray, noise: float) -> tuple[float, float]:
    """(standard deviation of the levels of well GPUs, degrees of freedom)."""
    fast = -deviations[deviations <= 0.0]
    freedom = _OF_MAD * max(0, len(fast) - 1)
    prior = _MEDIAN_OF_3 * noise**2 + _NATURAL**2
    seen = (float(np.median(fast)) / _NORMAL_MAD) ** 2 if len(fast) > 1 else prior
    weights = _PRIOR + freedom
    return math.sqrt((_PRIOR * prior + freedom * seen) / weights), weights


def _own_noise(steps: FloatArray, pooled: float) -> float:
    """Repeatability of one GPU: its own, with that of the group as a prior."""
    if len(steps) < _OWN_STEPS:
        return pooled
    freedom = _OF_MAD * len(steps)
    seen = _deviation(steps)
    return math.sqrt((_PRIOR * pooled**2 + freedom * seen**2) / (_PRIOR + freedom))


def _deviation(steps: FloatArray) -> float:
    """Standard deviation of one value, from absolute differences of two; 0 without any."""
    return float(np.median(steps)) / (_NORMAL_MAD * math.sqrt(2.0)) if len(steps) else 0.0


def _of_median(count: int) -> float:
    """Variance of the median of ``count`` standard normal values, about."""
    return math.pi / (2.0 * count + 1.0) if count > 0 else 1.0


def _without_shifts(own: Sequence[History]) -> list[FloatArray]:
    """Of each GPU the logarithms of its times without what all GPUs of a sweep share."""
    counts = [len(one.times) for one in own]
    gpus: IntArray = np.repeat(np.arange(len(own)), counts)
    at = np.array([at for one in own for at, _ in one.times])
    logs = np.log([ms for one in own for _, ms in one.times])
    sweeps = _sweeps(gpus, at, len(own))
    levels = _medians_by(gpus, logs)
    shifts = np.zeros(int(sweeps.max()) + 1)
    for _ in range(_POLISHES):
        shifts = _medians_by(sweeps, logs - levels[gpus])
        levels = _medians_by(gpus, logs - shifts[sweeps])
    return np.split(logs - shifts[sweeps], np.cumsum(counts)[:-1])


def _sweeps(gpus: IntArray, at: FloatArray, count: int) -> IntArray:
    """Number of the sweep of each measurement.

    One ends where a GPU occurs again, but not before half of the group, or ``_PER_SWEEP`` GPUs:
    what few GPUs share may be their own.
    """
    enough = min(_PER_SWEEP, (count + 1) // 2)
    found: IntArray = np.zeros(len(at), dtype=np.int64)
    number, seen = 0, set[int]()
    for position in np.argsort(at, kind="stable"):
        gpu = int(gpus[position])
        if gpu in seen and len(seen) >= enough:
            number, seen = number + 1, set()
        seen.add(gpu)
        found[position] = number
    return found


def _medians_by(keys: IntArray, values: FloatArray) -> FloatArray:
    """Lower median of the values of each key 0, 1, ..."""
    order = np.lexsort((values, keys))
    starts = np.searchsorted(keys[order], np.arange(int(keys.max()) + 1))
    ends = np.append(starts[1:], len(keys))
    medians: FloatArray = values[order][starts + (ends - starts - 1) // 2]
    return medians


def lower_median(values: FloatArray) -> float:
    """The value in the middle; of an even number the lower one of the two."""
    return float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])
