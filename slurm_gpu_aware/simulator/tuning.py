"""Comparison of policies on a site's history: what a seed varies, gains, harms, the best one.

A seed draws each day of the history anew from the days of the same weekday, and one measured run of
each GPU. All candidates of a seed run the same jobs on the same GPUs, so that they are compared in
pairs. As each seed is a bootstrap sample of the history, the scatter of the seeds is the error of a
gain that was measured on one such history; more seeds make it better known and not smaller.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.simulator.result import Mask, Result, ended_in_all
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.time_text import counted

LEAST_DAYS = 14  # Two of each weekday.
LEAST_JOBS = 200
LEAST_SEEDS = 4
MOST_HARM = 0.02
"""A candidate may be worse than another by this share in each measure of `MEASURES` with a harm."""
MOST_LOST = 0.001  # Share of the jobs that a candidate may finish less than another.
WIDE = 8  # GPUs of a wide job.
_DAY_S = 86_400.0
_WEEK = 7


def drawn_days(trace: Trace, days: range, seed: int) -> Trace:
    """The trace with each of its ``days`` drawn from those of its weekday, with repetition.

    Jobs that wait when the trace begins, and background jobs, stay. Jobs get new ids by submission.
    """
    rng = np.random.default_rng(seed)
    of_day: dict[int, list[TraceJob]] = {day: [] for day in days}
    jobs = []
    for job in trace.jobs:
        if job.submit_s > 0:
            of_day[min(int(job.submit_s // _DAY_S), days[-1])].append(job)
        else:
            jobs.append(job)
    for day in days:
        source = int(rng.choice([other for other in days if (other - day) % _WEEK == 0]))
        later_s = (day - source) * _DAY_S
        jobs += [replace(job, submit_s=job.submit_s + later_s) for job in of_day[source]]
    jobs.sort(key=lambda job: job.submit_s)
    numbered = (replace(job, job_id=str(number)) for number, job in enumerate(jobs, start=1))
    return replace(trace, jobs=tuple(numbered))


def drawn_runs(
    truth: Mapping[str, FloatArray], nodes: Sequence[str], runs: Sequence[GpuTiming], seed: int
) -> dict[str, FloatArray]:
    """Scores at which jobs run: each GPU as fast as in one of its measured runs.

    Parameters
    ----------
    truth : class -> (N, W) scores of the medians.
    nodes : names of the N nodes.
    runs : all runs of each GPU and class.
    """
    drawn = {name: scores.copy() for name, scores in truth.items()}
    rng = np.random.default_rng([seed, 1])
    rows = {name: row for row, name in enumerate(nodes)}
    times: dict[tuple[str, int, str], list[float]] = {}
    for run in runs:
        times.setdefault((run.node, run.slot, run.app_class), []).append(run.value_ms)
    for (node, slot, kind), values in sorted(times.items()):
        factor = float(rng.choice(values) / np.median(values))
        if kind in drawn and node in rows and slot < drawn[kind].shape[1]:
            drawn[kind][rows[node], slot] *= factor
    return drawn


def covered_days(trace: Trace, days: int) -> range:
    """The last ``days`` from the first one with a submission; times count from their begin.

    Raises RequestError if days or jobs are too few to compare policies.
    """
    first = min((job.submit_s for job in trace.jobs), default=days * _DAY_S)
    covered = range(int(first // _DAY_S), days)
    if len(covered) < LEAST_DAYS or len(trace.jobs) < LEAST_JOBS:
        raise RequestError(
            f"too little history: {counted(len(trace.jobs), 'job')} with GPUs in"
            f" {counted(len(covered), 'day')}; a"
            f" comparison needs {LEAST_JOBS} jobs in {LEAST_DAYS} days"
        )
    return covered


class Measure(NamedTuple):
    """A number by which candidates are compared; less is better."""

    of: Callable[[Result, Mask], float]  # Its value over the jobs of a mask; NaN: there are none.
    header: str = ""  # Of its change in the table of candidates; empty: not there.
    harm: str = ""  # What gets worse, in words; empty: that is no reason against a candidate.
    least: float = 1e-9  # A value below which differences do not count.


def _gpus(result: Result) -> IntArray:
    return np.array([job.gpus for job in result.trace.jobs])


def _jct_from(least: int) -> Callable[[Result, Mask], float]:
    """The average completion time of jobs of so many GPUs or more."""

    def of(result: Result, among: Mask) -> float:
        jct_s = result.jct_s(among & (_gpus(result) >= least))
        return float(jct_s.mean()) if len(jct_s) else math.nan

    return of


def _energy_j(result: Result, among: Mask) -> float:
    """NaN: not known."""
    return math.nan if result.energy is None else float(result.energy.job_j[among].sum())


def _slowest_tenth_s(result: Result, among: Mask) -> float:
    """The average of the tenth of the completion times that are longest."""
    jct_s = np.sort(result.jct_s(among))
    return float(jct_s[-math.ceil(len(jct_s) / 10) :].mean())


MEASURES: Mapping[str, Measure] = {
    "jct_s": Measure(lambda r, among: float(r.jct_s(among).mean())),
    "energy_j": Measure(_energy_j, "energy"),
    "gpu_s": Measure(lambda r, among: float((r.run_s * _gpus(r))[among].sum()), "GPU-hours"),
    "median_jct_s": Measure(lambda r, among: float(np.median(r.jct_s(among))), "median JCT"),
    "bounded_slowdown": Measure(
        lambda r, among: float(r.bounded_slowdown(among).mean()), "bounded slowdown"
    ),
    "p99_jct_s": Measure(
        lambda r, among: float(np.percentile(r.jct_s(among), 99)),
        "p99 JCT",
        "the 99th percentile of completion times",
    ),
    "longest_wait_s": Measure(
        lambda r, among: float(r.wait_s(among).max()), harm="the longest wait", least=60.0
    ),
    "slowest_tenth_s": Measure(_slowest_tenth_s, "slowest 10%"),
    "multi_jct_s": Measure(
        _jct_from(2), "several GPUs", "the completion time of jobs with several GPUs"
    ),
    "wide_jct_s": Measure(_jct_from(WIDE), f"{WIDE}+ GPUs"),
    "lost": Measure(lambda r, among: float(1.0 - r.done.mean())),
}
"""``jct_s`` is the average completion time, ``slowest_tenth_s`` that of the tenth of the jobs that
take longest, ``energy_j`` that of the jobs' GPUs, ``multi_jct_s`` that of jobs with several GPUs,
``wide_jct_s`` with `WIDE` or more, ``lost`` the share of all jobs that a run did not finish."""


def measures(results: Sequence[Result]) -> list[dict[str, float]]:
    """`MEASURES` of each run, over the jobs that ended in all. Raises RequestError without any."""
    among = ended_in_all(results)
    if not among.any():
        raise RequestError("no job ends with every candidate")
    return [{key: one.of(result, among) for key, one in MEASURES.items()} for result in results]


@dataclass(frozen=True)
class Comparison:
    """One candidate against another over the same seeds. Shares: 0.04 is 4%."""

    gain: float  # Shorter average completion time: geometric mean over the seeds.
    low: float  # Ends of the 95% interval.
    high: float
    changes: Mapping[str, float]
    """Measure -> its geometric mean change; ``lost``: the difference. NaN: not known."""

    @property
    def harms(self) -> list[str]:
        """What the candidate worsens by more than it may, in words."""
        found = [
            f"{one.harm} would be {_longer(self.changes[key])}"
            for key, one in MEASURES.items()
            if one.harm and self.changes[key] > MOST_HARM
        ]
        if self.changes["lost"] > MOST_LOST:
            found.append(f"{100 * self.changes['lost']:.1f}% more jobs would reach their limits")
        return found

    @property
    def sure(self) -> bool:
        """Whether the gain is beyond the uncertainty and nothing gets worse."""
        return self.low > 0 and not self.harms


def compare(
    candidate: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]]
) -> Comparison:
    """Compare the measures of two candidates, one pair per seed (at least 2)."""
    pairs = list(zip(candidate, other, strict=True))
    ratios = {
        name: np.array([_log_ratio(name, a[name], b[name]) for a, b in pairs])
        for name in candidate[0]
        if name != "lost"
    }
    changes = {name: math.expm1(float(values.mean())) for name, values in ratios.items()}
    changes["lost"] = float(np.mean([a["lost"] - b["lost"] for a, b in pairs]))
    mean, low, high = interval(ratios["jct_s"])
    return Comparison(-math.expm1(mean), -math.expm1(high), -math.expm1(low), changes)


def interval(logs: FloatArray) -> tuple[float, float, float]:
    """(Mean, ends of the 95% interval) of one more value like these, as the history itself is one.

    ``logs``: logarithms of ratios, one per seed, at least 2.
    """
    count, mean = len(logs), float(logs.mean())
    half = float(stdtrit(count - 1, 0.975)) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / count)
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class Verdict:
    """The best candidate, and whether it replaces the present one."""

    best: str
    pays: bool  # The best is ahead of packed placement beyond the uncertainty.
    changes: bool  # The best is ahead of the present candidate, too, and is another one.
    text: str  # In plain words.


def verdict(
    found: Mapping[str, Sequence[Mapping[str, float]]],
    reference: str,
    present: str,
    nothing: str = "Placement does not pay here",
) -> Verdict:
    """Choose among candidates. ``found``: label -> measures per seed. ``nothing``: what is said
    where the reference is the best.

    The best is the one with the largest gain of those that are ahead of ``reference`` beyond the
    uncertainty and harm nothing; without one it is the reference itself.
    """
    against = {name: compare(of, found[reference]) for name, of in found.items()}
    ahead = [name for name in found if against[name].sure]
    best = max(ahead, key=lambda name: against[name].gain, default=reference)
    if best == reference:
        nearest = max((n for n in found if n != reference), key=lambda n: against[n].gain)
        how = "without harm" if against[nearest].low > 0 else "beyond the uncertainty"
        text = (
            f"{nothing}: no candidate is ahead of {reference} {how}; the nearest,"
            f" {nearest}, gains {_gain(against[nearest])}."
        )
    else:
        text = (
            f"{best} is the best: the average completion time is shorter than with {reference} by"
            f" {_gain(against[best])}.{_passed_over(against, best)}"
        )
    if best == present:
        return Verdict(best, best != reference, False, f"{text} It is the present setting.")
    change = compare(found[best], found[present])
    how = "is ahead of" if change.sure else "does not replace"
    text += f" {best} {how} the present setting, {present}: it gains {_gain(change)}."
    return Verdict(best, best != reference, change.sure, text)


def _passed_over(against: Mapping[str, Comparison], best: str) -> str:
    """A sentence on the candidate that gains most, at least as much as the best, and is not it."""
    least = round(against[best].gain, 3)
    others = [
        n
        for n, one in against.items()
        if not one.sure and one.gain > 0 and round(one.gain, 3) >= least
    ]
    if not others:
        return ""
    name = max(others, key=lambda n: against[n].gain)
    why = "" if against[name].harms else ", within the uncertainty"
    return f" {name} gains {_gain(against[name])}{why}."


def percent(share: float) -> str:
    """``4.1%``; no number is ``-0.0%``."""
    return f"{round(100 * share, 1) + 0.0:.1f}%"


def _longer(share: float) -> str:
    return f"{100 * share:.1f}% longer" if share < 1.0 else f"{1.0 + share:.0f} times as long"


def _gain(comparison: Comparison) -> str:
    """``4.1% (95%: 2.0 to 6.3%)``, and what gets worse."""
    gain, low, high = map(percent, (comparison.gain, comparison.low, comparison.high))
    text = f"{gain} (95%: {low.removesuffix('%')} to {high})"
    return f"{text}, but {' and '.join(comparison.harms)}" if comparison.harms else text


def _log_ratio(name: str, a: float, b: float) -> float:
    """Logarithm of a / b, two values of a measure; NaN if one is."""
    least = MEASURES[name].least
    return math.log(max(a, least) / max(b, least)) if a == a and b == b else math.nan
