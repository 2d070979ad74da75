"""Power for explorations: what the limit leaves while jobs count with the limits of their GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from slurm_gpu_aware.features.power.job_clocks import Clock, higher
from slurm_gpu_aware.features.power.power_budget import PowerBudget, least_w, present_w
from slurm_gpu_aware.features.power.state import PoweredJob, PowerState
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import PlanSettings

_NEGLIGIBLE_W = 0.01


class ExplorationPower:
    """The power of a round, to which explorations are added one by one."""

    def __init__(self, cluster: Cluster, settings: PlanSettings, power: PowerState | None) -> None:
        """``power``: with every job at its table; None: there is no limit."""
        self._given = cluster, settings, power
        self._power = power
        self._running = dict(power.running) if power is not None else {}

    @cached_property
    def _left(self) -> list[float]:
        """W that the limit leaves: with all jobs at their most efficient clocks, and as now."""
        budget = PowerBudget.of(*self._given)
        if budget is None or budget.cluster.power_w is None:
            return [math.inf, math.inf]
        ours = [job for job in budget.cluster.running if job.power_is_ours]
        now_w = sum(budget.present_w(job) for job in ours)
        return [float(budget.cluster.power_w[0]), budget.for_ours_w - now_w]

    @property
    def state(self) -> PowerState | None:
        """The power state with what was added."""
        return None if self._power is None else replace(self._power, running=self._running)

    @property
    def is_exceeded(self) -> bool:
        """Whether the limit cannot be met, with other jobs at their most efficient clocks."""
        return self._left[0] < -_NEGLIGIBLE_W

    @property
    def is_free(self) -> bool:
        """Whether the power is there now, at the clocks that other jobs have."""
        return self._left[1] >= -_NEGLIGIBLE_W

    def take(self, job_id: str) -> bool:
        """Count a running job with the limits of its GPUs; False: the limit does not leave them.

        It leaves them if all other jobs can go to their most efficient clocks.
        """
        job = self._running.get(job_id)
        if job is None:
            return True
        if job.max_w - least_w(job) > max(self._left[0], 0.0) + _NEGLIGIBLE_W:
            return False
        self._put(job_id, replace(job, table=None, adjustable=False))
        return True

    def add_at_least(self, job_id: str, clock: Clock) -> None:
        """Count a running job with this clock, if it is higher than its present one."""
        job = self._running.get(job_id)
        if job is not None:
            self._put(job_id, replace(job, clock_mhz=higher([job.clock_mhz, clock])))

    def _put(self, job_id: str, job: PoweredJob) -> None:
        before = self._running[job_id]
        self._left[0] -= least_w(job) - least_w(before)
        self._left[1] -= present_w(job) - present_w(before)
        self._running[job_id] = job
