"""Power limit in a simulation: what a round knows of the power of its GPUs and jobs."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from slurm_gpu_aware.features.energy.stage import bounded, chosen_clock
from slurm_gpu_aware.features.power.power_budget import POWER, PoweredJob, PowerState
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.settings import PowerSettings, modes
from slurm_gpu_aware.simulator.simulated_feature import Asked, SimulatedFeature


class SimulatedLimit(SimulatedFeature):
    """The power limit of a run, if it has one."""

    def prepare(self) -> None:
        """Only a limit changes clocks."""
        power = self.settings.power
        self.adjusts = power is not None and math.isfinite(power.eta)

    def sees_running(self, asked: Asked) -> bool:
        """Under a limit."""
        return self.adjusts

    def told(self, asked: Asked) -> Mapping[Facet[Any], Any]:
        """The limit, and the power of what runs."""
        power = self.settings.power
        if power is None or not self.adjusts or modes()[self.settings.mode].powered:
            return {POWER: None}
        there, running = self.state.idle.exists, self.state.running
        positions = running if asked.keep is None else asked.keep
        jobs = {running[p].job.job_id: _powered(running[p], power) for p in positions}
        max_w, idle_w = (np.where(there, watts, 0.0) for watts in (power.max_w, power.idle_w))
        return {POWER: PowerState(max_w, idle_w, power.limit_w(self.state.total), jobs)}


def _powered(active: ActiveJob, power: PowerSettings) -> PoweredJob:
    table = active.request.get(TABLE)
    return PoweredJob(
        active.size,
        active.size * power.max_w,
        bounded(table, chosen_clock(active.placed)),
        active.clock_mhz,
        adjustable=table is not None,
    )


SIMULATED = SimulatedLimit
