"""Order of the queue in a simulation: the rule of the run."""

from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.features.queue_order.stage import RULE
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.simulator.simulated_feature import Asked, SimulatedFeature


class SimulatedOrder(SimulatedFeature):
    """The rule of the run."""

    def prepare(self) -> None:
        """Jobs pass others by some rules only."""
        self.passes = self.settings.queue.exchanges

    def told(self, asked: Asked) -> Mapping[Facet[Any], Any]:
        """The rule."""
        return {RULE: self.settings.queue}


SIMULATED = SimulatedOrder
