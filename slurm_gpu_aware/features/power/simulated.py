"""Power limit in a simulation: what a round knows of the power of its GPUs and jobs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.features.energy.stage import bounded, chosen_clock
from slurm_gpu_aware.features.power.power_budget import POWER, PoweredJob, PowerState
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.power_meter import PowerMeter
from slurm_gpu_aware.simulator.settings import RunSection, SimSettings, modes
from slurm_gpu_aware.simulator.simulated_feature import Asked, SimulatedFeature
from slurm_gpu_aware.simulator.trace import TraceJob


@dataclass(frozen=True)
class RunPower(RunSection):
    """Power of the GPUs of a run, which are all of one model, and of the site."""

    idle_w: float = 0.0  # Power of a GPU without a job.
    max_w: float = 0.0  # Power limit of a GPU; 0: power and energy of jobs are not known.
    eta: float = math.inf
    """Limit of the site as a share of the power limits of all GPUs; inf: none."""
    known: Mapping[str, SizeTable] = field(default_factory=dict)
    """Application -> its size table as the planner knows it; others: the jobs' own."""

    def limit_w(self, gpus: int) -> float:
        """Limit of a site with so many GPUs: a share of what they may draw; inf: none."""
        return self.eta * gpus * self.max_w

    def __post_init__(self) -> None:
        if not 0.0 <= self.idle_w <= self.max_w < math.inf:
            raise PolicyError(f"power of a GPU: {self.idle_w:g} W idle, limit {self.max_w:g} W")
        if not self.eta > 0.0:
            raise PolicyError(f"eta is {self.eta:g}, expected a share above 0")

    @property
    def words(self) -> str:
        """``eta=0.6``."""
        return "" if self.eta == math.inf else f" eta={self.eta:g}"


RUN = RunPower


def power_of(settings: SimSettings) -> RunPower:
    """The power of a run. Raises PolicyError if the mode of the run needs it and it has none."""
    power = settings.of(RunPower)
    if modes()[settings.mode].powered and not power.max_w:
        raise PolicyError(f"{settings.mode} needs power and size tables: give --eta")
    return power


class SimulatedLimit(SimulatedFeature):
    """The power of a run, and its limit if it has one."""

    def prepare(self) -> None:
        """Only a limit changes clocks."""
        self.power = power_of(self.settings)
        self.adjusts = math.isfinite(self.power.eta)
        if self.power.max_w and all(job.table is not None for job in self.trace.jobs):
            limit_w = self.power.limit_w(self.state.total)
            self.state.meter = PowerMeter(self.state.total, self.power.idle_w, limit_w)

    def asked(self, job: TraceJob, request: Request) -> Request:
        """With its size table, as the planner knows it."""
        if not self.power.max_w:
            return request
        return request.put(TABLE, self.power.known.get(job.model or "", job.table))

    def sees_running(self, asked: Asked) -> bool:
        """Under a limit."""
        return self.adjusts

    def told(self, asked: Asked) -> Mapping[Facet[Any], Any]:
        """The limit, and the power of what runs."""
        power = self.power
        if not self.adjusts or modes()[self.settings.mode].powered:
            return {POWER: None}
        there, running = self.state.idle.exists, self.state.running
        positions = running if asked.keep is None else asked.keep
        jobs = {running[p].job.job_id: _powered(running[p], power) for p in positions}
        max_w, idle_w = (np.where(there, watts, 0.0) for watts in (power.max_w, power.idle_w))
        return {POWER: PowerState(max_w, idle_w, power.limit_w(self.state.total), jobs)}


def _powered(active: ActiveJob, power: RunPower) -> PoweredJob:
    table = active.request.get(TABLE)
    return PoweredJob(
        active.size,
        active.size * power.max_w,
        bounded(table, chosen_clock(active.placed)),
        active.clock_mhz,
        adjustable=table is not None,
    )


SIMULATED = SimulatedLimit
