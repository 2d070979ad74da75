"""Result of a run: arrays per job, the use of GPUs over time, summary numbers; comparison of runs.

All policies of a seed run the same jobs on the same GPUs, so they are compared in pairs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray, area_until
from slurm_gpu_aware.simulator.columns import columns
from slurm_gpu_aware.simulator.power_meter import Energy
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace

_SMALL = 0.01
SHORT_S = 10.0  # The bounded slowdown counts shorter jobs as so long.
_SLOWER = 1e-3  # A job is slower if its completion time is longer by more than this share.
Mask = BoolArray  # (jobs,) True for the jobs that count.


@dataclass(frozen=True, eq=False)
class Result:
    """Outcome of one run. Arrays have one entry per job of the trace; times in seconds."""

    trace: Trace
    settings: SimSettings
    total_gpus: int
    start_s: FloatArray  # First start; NaN: the job did not start (see ``infeasible``).
    end_s: FloatArray  # End, also of a job that was killed.
    run_s: FloatArray  # Time on GPUs, restarts included.
    done_s: FloatArray  # Work done, in seconds at slowdown 1; ``duration_s`` for a job that ended.
    preemptions: IntArray
    migrations: IntArray
    killed: Mask  # (jobs,) True for jobs that reached their time limit unfinished.
    infeasible: tuple[tuple[str, str], ...]
    """(job id, reason) of jobs that can never be placed on this cluster."""
    used_s: FloatArray  # Times at which the number of used GPUs changed, ascending.
    used_gpus: IntArray  # GPUs in use from the same entry of ``used_s`` on.
    fragmented_gpu_s: float | None
    """Integral over time of free GPUs on nodes that are partly used; None: not known."""
    placement_ms: FloatArray  # Time of each round's planning; empty without a timer.
    energy: Energy | None = None
    """Energy and power over time; None: the power of a job, or of the GPUs, is not known."""
    placements: list[dict[str, Any]] = field(default_factory=list)
    """Every start, in order: job_id, at_s, nodes, slots, slowdown; empty unless requested."""
    recorded: bool = False  # The result is a record of the site, not a simulation.

    @property
    def done(self) -> Mask:
        """(jobs,) True for jobs that ended with their work done."""
        return np.isfinite(self.end_s) & ~self.killed

    @cached_property
    def energy_numbers(self) -> Mapping[str, Any]:
        """Energy from the first submission to the last end, of all jobs; empty: not known."""
        if self.energy is None or not self.done.any():
            return {}
        return self.energy.summary(*self._span(None))

    def of_trace(self, column: str) -> FloatArray:
        """(jobs,) a number of the jobs of the trace; NaN: it has none."""
        return np.array([getattr(job, column) for job in self.trace.jobs], dtype=np.float64)

    def jct_s(self, among: Mask | None = None) -> FloatArray:
        """End - submission of the jobs that ended, within the mask ``among``."""
        return np.asarray((self.end_s - self.of_trace("submit_s"))[self._chosen(among)])

    def wait_s(self, among: Mask | None = None) -> FloatArray:
        """First start - submission of the jobs that ended."""
        return np.asarray((self.start_s - self.of_trace("submit_s"))[self._chosen(among)])

    def slowdown(self, among: Mask | None = None) -> FloatArray:
        """Time on GPUs / duration in the trace, of the jobs that ended."""
        return np.asarray((self.run_s / self.of_trace("duration_s"))[self._chosen(among)])

    def bounded_slowdown(self, among: Mask | None = None) -> FloatArray:
        """Completion time / duration in the trace, at least 1, of the jobs that ended.

        Shorter jobs count as `SHORT_S` long (Feitelson, "Metrics for parallel job scheduling and
        their convergence", 2001). The duration is the same in all runs, so slower GPUs count.
        """
        work_s = np.maximum(self.of_trace("duration_s"), SHORT_S)[self._chosen(among)]
        return np.asarray(np.maximum(1.0, self.jct_s(among) / work_s))

    def ran_s(self, among: Mask | None = None) -> FloatArray:
        """Time on GPUs of the jobs that ended."""
        return np.asarray(self.run_s[self._chosen(among)])

    def makespan_s(self, among: Mask | None = None) -> float:
        """Last end - first submission; 0 without jobs."""
        begin, end = self._span(among)
        return end - begin

    def _span(self, among: Mask | None) -> tuple[float, float]:
        """First submission and last end of the jobs that ended."""
        chosen = self._chosen(among)
        if not chosen.any():
            return 0.0, 0.0
        return float(self.of_trace("submit_s")[chosen].min()), float(self.end_s[chosen].max())

    def _chosen(self, among: Mask | None) -> Mask:
        return self.done if among is None else self.done & among

    def utilization(self, among: Mask | None = None) -> float | None:
        """Share of the GPU time in use; None: more than 1, in the record of another cluster."""
        begin, end = self._span(among)
        if len(self.used_s) < 2 or end <= begin:
            return 0.0
        busy = area_until(self.used_s, self.used_gpus, np.array([begin, end]))
        used = float(busy[1] - busy[0]) / (self.total_gpus * (end - begin))
        return used if used < 1.0 + 1e-9 else None

    def fragmentation(self) -> float | None:
        """Share of the GPU time that is free on partly used nodes; None: not known."""
        idle, whole = self.fragmented_gpu_s, self.total_gpus * self.makespan_s()
        return None if idle is None else idle / whole if whole else 0.0

    def statistic(self, values: str, how: str, among: Mask | None = None) -> float | None:
        """``avg``, ``median`` or ``p99`` of ``jct_s`` or another array; None without jobs."""
        return _statistic(getattr(self, values)(among), how)

    def placement_times(self) -> dict[str, float | None]:
        """Median and longest time of planning a round; None: not measured. Units: ms."""
        return {how: _statistic(self.placement_ms, how) for how in ("median", "max")}

    def summary(self, among: Mask | None = None) -> dict[str, Any]:
        """`columns` of the run (None: unknown); times and slowdowns are those of ``among``."""
        return {c.key: c.of(self, among, c.key) for c in columns() if c.of is not None}


def _statistic(values: FloatArray, how: str) -> float | None:
    """``avg`` or a percentile by name; None without values."""
    if not len(values):
        return None
    if how == "avg":
        return float(values.mean())
    return float(np.percentile(values, {"median": 50, "p99": 99, "max": 100}[how]))


def ended_in_all(results: Sequence[Result]) -> Mask:
    """(jobs,) True for the jobs that ended in every run."""
    return np.asarray(np.logical_and.reduce([result.done for result in results]))


def compared(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Summaries over the jobs that ended in all runs, with ratios to the first simulated one."""
    among = ended_in_all(results)
    runs = [result.summary(among) for result in results]
    first = runs[first_simulated(results)]
    for run in runs:
        run["ratio_to_first"] = {
            key: run[key] / first[key]
            for key in (column.key for column in columns() if column.compared)
            if run[key] is not None and first[key]
        }
    return runs


def over_seeds(seeds: Sequence[Sequence[Result]]) -> list[dict[str, Any]]:
    """Summary per policy, as `compared`, over one or several seeds.

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
