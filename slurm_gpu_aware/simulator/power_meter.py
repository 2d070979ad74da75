"""Power meter of a simulation: power of all GPUs over time, and the energy of each job.

A running job draws the power that its table gives for its number of GPUs and their clock; slower
GPUs and longer links draw it for longer. Without progress, after a restart or a move, its GPUs draw
as much as idle ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, area_until
from slurm_gpu_aware.simulator.active import ActiveJob

_J_PER_KWH = 3.6e6


@dataclass(frozen=True, eq=False)
class Energy:
    """Energy and power of a run in which the power of every job of the trace is known."""

    job_j: FloatArray  # (jobs,) energy of each job on its GPUs, restarts included; J.
    at_s: FloatArray  # Times at which the power changed, ascending.
    power_w: FloatArray
    """Power of all GPUs, idle ones included, from the same entry of ``at_s`` on."""
    limit_w: float = math.inf  # Limit that the planner kept; inf: none.
    whole: bool = True  # Whether all power is known; False: background jobs count as idle GPUs.

    @property
    def job_kwh(self) -> FloatArray:
        """(jobs,) energy of each job in kWh."""
        return self.job_j / _J_PER_KWH

    def total_j(self, begin_s: float, end_s: float) -> float:
        """Integral of the power between two times."""
        area = area_until(self.at_s, self.power_w, np.array([begin_s, end_s]))
        return float(area[1] - area[0])

    def summary(self, begin_s: float, end_s: float) -> dict[str, float | None]:
        """Energy of the jobs; where all power is known, all energy between two times, that of GPUs
        without a job, the highest power, the limit that the planner kept (None: none)."""
        of_jobs: dict[str, float | None] = {"job_energy_kwh": float(self.job_kwh.sum())}
        if not self.whole:
            return of_jobs
        total = self.total_j(begin_s, end_s) / _J_PER_KWH
        return of_jobs | {
            "energy_kwh": total,
            "idle_energy_kwh": max(total - float(self.job_kwh.sum()), 0.0),
            "peak_power_w": float(self.power_w.max()),
            "power_limit_w": self.limit_w if math.isfinite(self.limit_w) else None,
        }


class PowerMeter:
    """Meter of one run.

    ``gpus``: of the cluster; ``idle_w``: power of a GPU without a job; ``limit_w``: of all GPUs.
    """

    def __init__(self, gpus: int, idle_w: float, limit_w: float = math.inf) -> None:
        self.limit_w = limit_w
        self.base_w = gpus * idle_w
        self.idle_w = idle_w
        self._changes: list[tuple[float, float]] = []
        """(time, power in addition from then on)."""

    def enter(self, active: ActiveJob, now: float, power_w: float) -> None:
        """Meter a job that gets GPUs; ``power_w``: what it draws while it makes progress."""
        active.metered_s = max(now, active.resume_s)
        active.above_idle_w = power_w - active.size * self.idle_w
        self._changes.append((active.metered_s, active.above_idle_w))

    def leave(self, active: ActiveJob, now: float) -> None:
        """Meter a job that gives its GPUs back, before its ``placed_s`` is cleared."""
        self._end(active, now)
        active.energy_j += active.size * self.idle_w * (now - active.placed_s)

    def change(self, active: ActiveJob, now: float, power_w: float) -> None:
        """Meter another power of a job on the same GPUs."""
        self._end(active, now)
        self.enter(active, now, power_w)

    def _end(self, active: ActiveJob, now: float) -> None:
        until = max(now, active.resume_s)
        active.energy_j += active.above_idle_w * (until - active.metered_s)
        self._changes.append((until, -active.above_idle_w))

    def read(self, jobs: Sequence[ActiveJob], *, whole: bool = True) -> Energy:
        """The readings of a run that has ended. ``jobs``: by position in the trace."""
        at, more = np.array([(0.0, self.base_w), *self._changes]).T
        times, inverse = np.unique(at, return_inverse=True)
        power = np.cumsum(np.bincount(inverse, weights=more), dtype=np.float64)
        energy = np.array([active.energy_j for active in jobs], dtype=np.float64)
        return Energy(energy, times, power, self.limit_w, whole)
