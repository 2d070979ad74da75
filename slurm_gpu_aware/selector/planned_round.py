"""A planned round: the input of the planner and its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.power import PowerState
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, PlanSettings

__all__ = ["PlannedRound"]


@dataclass(frozen=True)
class PlannedRound:
    """Input of the planner, and its plan."""

    queue: Sequence[Request]
    cluster: Cluster
    settings: PlanSettings
    now: float
    plan: Plan
    options: Mapping[str, Mapping[str, Any]]
    power: PowerState | None = None

    def record(self) -> Mapping[str, Any]:
        """Plain values, for replay."""
        from slurm_gpu_aware.planning.record import record_round

        given = self.queue, self.cluster, self.settings, self.now, self.plan, self.options
        return record_round(*given, power=self.power)
