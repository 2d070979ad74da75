"""Outliers and drift: GPUs far from the median of their model, or from what they were.

The PM score compares a GPU with the median GPU of its model in the same period, so a warmer room, a
new driver or a new program that changes all GPUs alike changes no score; `Shift` names that case.
GPUs of one model differ by some ten percent; up to 3.5 times was measured. If a file has one node
in seconds instead of milliseconds, every job of the class goes to that node. An import therefore
refuses new outliers until a person accepts them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.profile import Alarm, Gpu, GpuTiming, Pair, gpu_names

_FACTOR = 4.0  # Standard deviations of the difference of two medians that are no drift.
LEAST = 0.03
"""Relative rise of a score that is never drift: days differ by more than the runs of one day."""
FEWEST_RUNS = 3  # The median of fewer runs is as slow as a single unlucky one.
_LEAST_SHIFT = 0.01
_FEWEST_GPUS = 3  # With fewer GPUs of a model each one moves the median that it is compared with.
_SOME_GPUS, _MANY_GPUS = 8, 64
"""From so many GPUs on the spread of their changes is known: roughly, and well enough alone."""
_NORMAL_MAD = 0.674490  # Median of the absolute value of a standard normal variable.


@dataclass(frozen=True)
class Change:
    """Change of the score of one GPU for one class."""

    node: str
    slot: int
    app_class: str
    model: str
    before: float  # PM score of the median of the runs, at ``before_at``.
    now: float
    rise: float  # Relative: 0.15 = the score is 15% higher. Negative: lower.
    threshold: float  # Relative rise that runs and days explain; inf: their spread is not known.
    runs: int  # Runs of the newest measurement.
    before_at: float
    now_at: float

    @property
    def beyond(self) -> bool:
        """Whether the score rose beyond the spread, in however many runs."""
        return self.rise > self.threshold

    @property
    def slower(self) -> bool:
        """Whether the GPU became slower: beyond the spread, in the median of enough runs."""
        return self.beyond and self.runs >= FEWEST_RUNS


class Shift(NamedTuple):
    """All GPUs of a model changed together, which no score shows."""

    app_class: str
    model: str
    gpus: int
    ratio: float  # Median time now over that before.


@dataclass(frozen=True)
class Drift:
    """What changed between two periods."""

    changes: tuple[Change, ...]  # One per GPU and class, the largest rise first.
    shifts: tuple[Shift, ...]

    @property
    def slower(self) -> tuple[Change, ...]:
        """GPUs that became slower, worst first."""
        return tuple(change for change in self.changes if change.slower)

    @property
    def unconfirmed(self) -> tuple[Change, ...]:
        """GPUs that rose beyond the spread in too few runs to tell."""
        return tuple(c for c in self.changes if c.beyond and not c.slower)

    @property
    def unjudged(self) -> tuple[Change, ...]:
        """GPUs whose spread is not known."""
        return tuple(change for change in self.changes if math.isinf(change.threshold))


def drift(pairs: Iterable[Pair], *, least: float = LEAST) -> Drift:
    """Compare two measurements of each GPU and class.

    A GPU became slower if the logarithm of its score rose by more than ``log(1 + least)`` plus
    ``_FACTOR`` standard deviations. There are two robust estimates of the standard deviation, both
    per class and model: that of the difference of two medians of runs, from the spread of the runs
    (:func:`run_spread`), and 1.4826 MAD of the changes of all GPUs, which contains what differs
    from day to day and no trend that all measurements have alike. With fewer than 8 GPUs the first
    one counts, with fewer than 64 the larger one, else the second one. GPUs of a model with fewer
    than 3 GPUs, or without any known spread, get the threshold inf.
    """
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.app_class, pair.model), []).append(pair)
    changes: list[Change] = []
    shifts: list[Shift] = []
    for (app_class, model), own in sorted(groups.items()):
        before = np.log([median(pair.before_ms) for pair in own])
        now = np.log([median(pair.now_ms) for pair in own])
        scores = before - np.median(before), now - np.median(now)
        rise = scores[1] - scores[0]
        deviation = _deviations(own, rise)
        threshold = math.log1p(least) + _FACTOR * deviation
        levels = [np.exp(score).tolist() for score in scores]
        relative = [np.expm1(log).tolist() for log in (rise, threshold)]
        changes += [
            Change(
                node=pair.node,
                slot=pair.slot,
                app_class=app_class,
                model=model,
                before=was,
                now=is_now,
                rise=rose,
                threshold=beyond,
                runs=len(pair.now_ms),
                before_at=pair.before_at,
                now_at=pair.now_at,
            )
            for pair, was, is_now, rose, beyond in zip(own, *levels, *relative, strict=True)
        ]
        shift = float(np.median(now) - np.median(before))
        noise = _FACTOR * float(np.median(deviation)) / math.sqrt(len(own))
        if abs(shift) > max(math.log1p(_LEAST_SHIFT), noise):
            shifts.append(Shift(app_class, model, len(own), math.exp(shift)))
    changes.sort(key=lambda c: (-c.rise, c.app_class, c.node, c.slot))
    return Drift(tuple(changes), tuple(shifts))


def run_spread(measurements: Iterable[Sequence[float]]) -> float:
    """Relative standard deviation of single runs, from runs of many measurements; nan: unknown.

    The median of the absolute differences of successive runs of one measurement, as logarithms,
    over 0.6745 sqrt(2): unlike the MAD of the few runs around their own median it is not biased,
    and some disturbed runs do not change it.
    """
    logs: list[float] = []
    which: list[int] = []
    for number, runs in enumerate(measurements):
        logs += map(math.log, runs)
        which += [number] * len(runs)
    steps = np.abs(np.diff(logs))[np.diff(which) == 0] if len(logs) > 1 else np.empty(0)
    return float(np.median(steps)) / (_NORMAL_MAD * math.sqrt(2.0)) if steps.size else math.nan


def _deviations(own: Sequence[Pair], rise: FloatArray) -> FloatArray:
    """(n,) standard deviation of the logarithm of each GPU's change; inf: not known."""
    if len(own) < _FEWEST_GPUS:
        return np.full(len(own), math.inf)
    run = run_spread([p.before_ms for p in own] + [p.now_ms for p in own])
    counts: IntArray = np.array([(len(p.before_ms), len(p.now_ms)) for p in own], dtype=np.int64)
    # Variance of a median of n normal runs: pi / 2n for many, less for few.
    medians = run * np.sqrt(math.pi / 2.0 * (1.0 / counts).sum(axis=1))
    if len(own) < _SOME_GPUS:
        found = medians
    else:
        # The changes of GPUs with few runs differ more.
        relative = np.sqrt((1.0 / counts).sum(axis=1))
        mad = float(np.median(np.abs(rise - np.median(rise)) / relative))
        days = mad / _NORMAL_MAD * relative
        found = days if len(own) >= _MANY_GPUS else np.fmax(medians, days)
    return np.where(np.isnan(found), math.inf, found)


def slow_again(
    changes: Iterable[Change], known: Iterable[Alarm]
) -> tuple[list[Change], list[Alarm]]:
    """What to report after ``known`` was reported: (changes to report, alarms to remember).

    A reported GPU is reported again only if its score rose beyond the threshold over that of the
    report, or after it recovered: its score came back to within half the threshold of what it was
    before. So a score near the threshold is not reported over and over.
    """
    kept: Mapping[tuple[str, int, str], Alarm] = {alarm[:3]: alarm for alarm in known}
    after = dict(kept)
    new: list[Change] = []
    for change in (change for change in changes if math.isfinite(change.threshold)):
        key = (change.node, change.slot, change.app_class)
        alarm = kept.get(key)
        if alarm and change.now <= alarm.before * (1.0 + change.threshold / 2.0):
            del after[key]
            alarm = None
        worse = alarm is not None and change.now > alarm.now * (1.0 + change.threshold)
        if change.runs >= FEWEST_RUNS and (worse or (alarm is None and change.beyond)):
            new.append(change)
            after[key] = Alarm(*key, alarm.before if alarm else change.before, change.now)
    return new, list(after.values())


FAR = 2.0  # A time outside 1 / FAR .. FAR times the median is an outlier.

Units = Mapping[float, str]  # Ratio of two values -> units that may be mixed up.
TIME_UNITS: Units = {
    60.0: "seconds and minutes",
    1e3: "milliseconds and seconds",
    6e4: "milliseconds and minutes",
    1e6: "milliseconds and nanoseconds",
}
RATE_UNITS: Units = {1e3: "prefixes such as G and T", 1e6: "prefixes such as M and T"}
"""For times that were made of rates."""
BANDWIDTH_UNITS: Units = {8.0: "bits and bytes", 1e3: "MB/s and GB/s"}


class Outlier(NamedTuple):
    """One GPU for one class."""

    app_class: str
    model: str  # Empty if unknown.
    node: str
    slot: int
    ratio: float  # Time over that of the median GPU of the model on other nodes.


def outliers(timings: Iterable[GpuTiming], unseen: Set[Gpu] = frozenset()) -> list[Outlier]:
    """All outliers, sorted by class, model and node.

    A GPU is compared with the median GPU of its model on *other* nodes: so a node in another unit
    is found even if it has half of the GPUs. If the model is on one node only, it is compared with
    the other GPUs of the node. Of an even number of GPUs the one of the two in the middle counts
    that is nearer.

    ``timings``: one per GPU and class. ``unseen``: GPUs that do not count for the median, unless
    there are no others.
    """
    groups: dict[tuple[str, str, str], list[GpuTiming]] = {}
    for row in timings:
        groups.setdefault((row.app_class, row.model, row.board), []).append(row)
    found: list[Outlier] = []
    for (name, model, _), rows in groups.items():
        counted = [row for row in rows if row[:2] not in unseen] or rows
        found += [
            Outlier(name, model, row.node, row.slot, ratio)
            for row, ratio in zip(rows, _ratios(rows, counted), strict=True)
            if not 1 / FAR <= ratio <= FAR
        ]
    return sorted(found)


def _ratios(rows: Sequence[GpuTiming], counted: Sequence[GpuTiming]) -> list[float]:
    """Time of each row over the median of those of ``counted`` that are on other nodes."""
    ranked = sorted(counted, key=lambda row: row.value_ms)
    ordered = [row.value_ms for row in ranked]
    ranks: dict[str, list[int]] = {}
    for rank, row in enumerate(ranked):
        ranks.setdefault(row.node, []).append(rank)
    ratios = []
    for row in rows:
        own = ranks.get(row.node, [])
        if len(own) == len(ordered):  # no other node
            own = [rank for rank in own if ranked[rank].slot == row.slot]
        middle = _middle(ordered, own)
        ratios.append(
            min((row.value_ms / time for time in middle), key=lambda r: max(r, 1 / r), default=1.0)
        )
    return ratios


def _middle(ordered: Sequence[float], left_out: Sequence[int]) -> tuple[float, ...]:
    """The two values in the middle of a sorted list without the (ascending) ``left_out`` ranks.

    They are the same of an odd number; empty: nothing is left. Costs O(len(left_out)).
    """
    rest = len(ordered) - len(left_out)
    if not rest:
        return ()
    low, high = (rest - 1) // 2, rest // 2
    for rank in left_out:
        low += rank <= low
        high += rank <= high
    return ordered[low], ordered[high]


def new_outliers(before: Iterable[Outlier], after: Iterable[Outlier]) -> list[Outlier]:
    """Outliers of ``after`` that ``before`` does not contain with about the same ratio."""
    known = {(o.app_class, o.node, o.slot): o.ratio for o in before}
    return [
        o
        for o in after
        if not 1 / FAR <= o.ratio / known.get((o.app_class, o.node, o.slot), 1.0) <= FAR
    ]


def outlier_sentences(found: Sequence[Outlier], units: Units = TIME_UNITS) -> list[str]:
    """One sentence without a full stop per class, model and side: the GPUs and their ratios.

    ``units``: those that may be mixed up.
    """
    groups: dict[tuple[str, str, bool], list[Outlier]] = {}
    for one in found:
        groups.setdefault((one.app_class, one.model, one.ratio > 1.0), []).append(one)
    return [_sentence(own, units) for own in groups.values()]


def mixed_units(ratio: float, units: Units = TIME_UNITS) -> str:
    """`` (are seconds and minutes mixed up?)`` if the ratio suggests it, else empty."""
    factor = max(ratio, 1.0 / ratio)
    near = next((u for f, u in units.items() if f / 2 <= factor <= f * 2), None)
    return f" (are {near} mixed up?)" if near else ""


def _sentence(own: Sequence[Outlier], units: Units) -> str:
    names = gpu_names((o.node, o.slot) for o in own)
    low, high = f"{min(o.ratio for o in own):.3g}", f"{max(o.ratio for o in own):.3g}"
    times = low if low == high else f"{low} to {high}"
    model = f" {own[0].model}" if own[0].model else ""
    verb, its = ("takes", "its") if len(own) == 1 else ("take", "their")
    far = max((o.ratio for o in own), key=lambda ratio: max(ratio, 1.0 / ratio))
    return (
        f"class {own[0].app_class}: {names} {verb} {times} times as long as the median GPU of"
        f" {its} model{model}{mixed_units(far, units)}"
    )
