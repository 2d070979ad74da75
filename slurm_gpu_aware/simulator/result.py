"""Result of a run: arrays per job, the use of GPUs over time, and summary numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from slurm_gpu_aware.features.power.power_meter import Energy
from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.simulator.columns import COLUMNS
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.step_function import area_until
from slurm_gpu_aware.simulator.trace import Trace

_ROUNDING_S = 1e-3
"""Lateness that is rounding."""
Mask = BoolArray
"""(jobs,) True for the jobs that count."""


@dataclass(frozen=True, eq=False)
class Result:
    """Outcome of one run. Arrays have one entry per job of the trace; times in seconds."""

    trace: Trace
    settings: SimSettings
    total_gpus: int
    start_s: FloatArray
    """First start; NaN: the job did not start (see ``infeasible``)."""
    end_s: FloatArray
    """End, also of a job that was killed."""
    run_s: FloatArray
    """Time on GPUs, restarts included."""
    done_s: FloatArray
    """Work done, in seconds at slowdown 1; ``duration_s`` for a job that ended."""
    preemptions: IntArray
    migrations: IntArray
    killed: Mask
    """(jobs,) True for jobs that reached their time limit unfinished."""
    infeasible: tuple[tuple[str, str], ...]
    """(job id, reason) of jobs that can never be placed on this cluster."""
    used_s: FloatArray
    """Times at which the number of used GPUs changed, ascending."""
    used_gpus: IntArray
    """GPUs in use from the same entry of ``used_s`` on."""
    fragmented_gpu_s: float | None
    """Integral over time of free GPUs on nodes that are partly used; None: not known."""
    placement_ms: FloatArray
    """Time of each round's planning; empty without a timer."""
    energy: Energy | None = None
    """Energy and power over time; None: the power of a job, or of the GPUs, is not known."""
    placements: list[dict[str, Any]] = field(default_factory=list)
    """Every start, in order: job_id, at_s, nodes, slots, slowdown; empty unless requested."""
    recorded: bool = False
    """The result is a record of the site, not a simulation."""

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

    @cached_property
    def due_numbers(self) -> Mapping[str, Any]:
        """Jobs with due dates, the share in time, lateness; empty without such jobs.

        ``avg_late_s`` is the mean lateness of those that ended (in time: 0), ``late_h`` its sum. A
        job that did not end is not in time; how late it would be is not known.
        """
        due_s = self._of_trace("deadline_s")
        dated = np.isfinite(due_s)
        if not dated.any():
            return {}
        late_s = np.maximum(self.end_s - due_s, 0.0)
        late_s[late_s <= _ROUNDING_S] = 0.0
        ended = dated & self.done
        in_time = ended & (late_s == 0)
        return {
            "due_jobs": int(dated.sum()),
            "due_met": float(in_time.sum() / dated.sum()),
            "avg_late_s": float(late_s[ended].mean()) if ended.any() else None,
            "late_h": float(late_s[ended].sum() / 3600.0),
        }

    def _of_trace(self, column: str) -> FloatArray:
        return np.array([getattr(job, column) for job in self.trace.jobs], dtype=np.float64)

    def jct_s(self, among: Mask | None = None) -> FloatArray:
        """End - submission of the jobs that ended, within the mask ``among``."""
        return np.asarray((self.end_s - self._of_trace("submit_s"))[self._chosen(among)])

    def wait_s(self, among: Mask | None = None) -> FloatArray:
        """First start - submission of the jobs that ended."""
        return np.asarray((self.start_s - self._of_trace("submit_s"))[self._chosen(among)])

    def slowdown(self, among: Mask | None = None) -> FloatArray:
        """Time on GPUs / duration in the trace, of the jobs that ended."""
        return np.asarray((self.run_s / self._of_trace("duration_s"))[self._chosen(among)])

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
        return float(self._of_trace("submit_s")[chosen].min()), float(self.end_s[chosen].max())

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
        """`COLUMNS` of the run (None: unknown); times and slowdowns are those of ``among``."""
        return {c.key: c.of(self, among, c.key) for c in COLUMNS if c.of is not None}


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
    first = next((run for run, r in zip(runs, results, strict=True) if not r.recorded), runs[0])
    for run in runs:
        run["ratio_to_first"] = {
            key: run[key] / first[key]
            for key in (column.key for column in COLUMNS if column.compared)
            if run[key] is not None and first[key]
        }
    return runs
