"""Order of the queue in a simulation: the rule of the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu_aware.features.queue_order.stage import RULE, OrderRule
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.simulator.settings import RunSection, SimSettings
from slurm_gpu_aware.simulator.simulated_feature import Asked, SimulatedFeature


@dataclass(frozen=True)
class RunOrder(RunSection):
    """The rule of a run: which jobs go before others in its order."""

    rule: OrderRule = OrderRule()  # noqa: RUF009 - it is frozen

    @property
    def words(self) -> str:
        """``@expected=0.1``."""
        return f"@{self.rule.label}" if self.rule.exchanges else ""

    @classmethod
    def read(cls, text: str, base: SimSettings) -> tuple[str, SimSettings]:
        """``NAME@expected=0.1``."""
        named, at, order = text.partition("@")
        return named, base.put(cls(base.of(cls).rule.named(order))) if at else base


RUN = RunOrder


class SimulatedOrder(SimulatedFeature):
    """The rule of the run."""

    def prepare(self) -> None:
        """Jobs pass others by some rules only."""
        self.rule = self.settings.of(RunOrder).rule
        self.passes = self.rule.exchanges

    def told(self, asked: Asked) -> Mapping[Facet[Any], Any]:
        """The rule."""
        return {RULE: self.rule}


SIMULATED = SimulatedOrder
