"""What a simulation leaves: per-job arrays, the use of GPUs over time, and summary numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slurm_gpu_aware.cluster import FloatArray, IntArray
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace

__all__ = ["Result"]


@dataclass(frozen=True, eq=False)
class Result:
    """Outcome of one run. Arrays have one entry per job of the trace; times in seconds."""

    trace: Trace
    settings: SimSettings
    total_gpus: int
    start_s: FloatArray
    """First start; NaN: never started (see ``never``)."""
    end_s: FloatArray
    run_s: FloatArray
    """Time on GPUs, restarts included."""
    preemptions: IntArray
    migrations: IntArray
    never: tuple[tuple[str, str], ...]
    """(job id, reason) of jobs that this cluster can never run."""
    used_s: FloatArray
    """Times at which the number of used GPUs changed, ascending."""
    used_gpus: IntArray
    """GPUs in use from the time at the same position on."""
    fragmented_gpu_s: float
    """Integral over time of free GPUs on nodes that are partly used."""
    placement_ms: FloatArray
    """Time of each round's planning; empty without a timer."""
    placements: list[dict[str, Any]] = field(default_factory=list)
    """Every start, in order: job_id, at_s, nodes, slots, slowdown (only if asked for)."""

    @property
    def done(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(jobs,) True for jobs that ended."""
        return np.isfinite(self.end_s)

    def _submit(self) -> FloatArray:
        return np.array([job.submit_s for job in self.trace.jobs], dtype=np.float64)

    def jct_s(self) -> FloatArray:
        """Completion time - submission of the jobs that ended."""
        return np.asarray((self.end_s - self._submit())[self.done])

    def wait_s(self) -> FloatArray:
        """First start - submission of the jobs that ended."""
        return np.asarray((self.start_s - self._submit())[self.done])

    def slowdown(self) -> FloatArray:
        """Time on GPUs / duration in the trace, of the jobs that ended."""
        work = np.array([job.duration_s for job in self.trace.jobs], dtype=np.float64)
        return np.asarray((self.run_s / work)[self.done])

    def makespan_s(self) -> float:
        """Last end - first submission; 0 without jobs."""
        if not self.done.any():
            return 0.0
        return float(np.nanmax(self.end_s) - self._submit().min())

    def utilization(self) -> float:
        """GPU seconds in use / (GPUs x makespan)."""
        if len(self.used_s) < 2 or not self.makespan_s():
            return 0.0
        busy = float(np.dot(np.diff(self.used_s), self.used_gpus[:-1]))
        return busy / (self.total_gpus * self.makespan_s())

    def summary(self) -> dict[str, Any]:
        """Numbers of the run, JSON-able."""
        jct, wait, slow = self.jct_s(), self.wait_s(), self.slowdown()
        span = self.makespan_s()

        def stat(values: FloatArray, how: str) -> float | None:
            if not len(values):
                return None
            if how == "avg":
                return float(values.mean())
            return float(np.percentile(values, 50 if how == "median" else float(how[1:])))

        return {
            "policy": self.settings.label,
            "order": self.settings.order,
            "jobs": int(self.done.sum()),
            "never": len(self.never),
            "avg_jct_s": stat(jct, "avg"),
            "median_jct_s": stat(jct, "median"),
            "p99_jct_s": stat(jct, "p99"),
            "avg_wait_s": stat(wait, "avg"),
            "median_wait_s": stat(wait, "median"),
            "p99_wait_s": stat(wait, "p99"),
            "avg_slowdown": stat(slow, "avg"),
            "median_slowdown": stat(slow, "median"),
            "p99_slowdown": stat(slow, "p99"),
            "makespan_s": span,
            "utilization": self.utilization(),
            "fragmentation": self.fragmented_gpu_s / (self.total_gpus * span) if span else 0.0,
            "preemptions": int(self.preemptions.sum()),
            "migrations": int(self.migrations.sum()),
            "placement_ms": {
                "median": stat(self.placement_ms, "median"),
                "max": float(self.placement_ms.max()) if len(self.placement_ms) else None,
            },
        }
