"""Order of the queue in a simulation: the rule of the run."""

from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.features.queue_order.stage import RULE
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.simulated_feature import Asked, SimulatedFeature
from slurm_gpu_aware.simulator.trace import Trace


class SimulatedOrder(SimulatedFeature):
    """The rule of the run."""

    def __init__(self, state: ClusterState, trace: Trace) -> None:
        super().__init__(state, trace)
        self.passes = self.settings.queue.exchanges

    def told(self, asked: Asked) -> Mapping[Facet[Any], Any]:
        """The rule."""
        return {RULE: self.settings.queue}


SIMULATED = SimulatedOrder
