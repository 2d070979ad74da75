"""Options of ``topo-aware`` and ``topo-aware-p``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.placement.drb.interference import InterferenceProfile, check_options
from slurm_gpu_aware.placement.drb.utility import Weights
from slurm_gpu_aware.placement.policy import PolicyOptions, bad_option, option_number


@dataclass(frozen=True)
class TopoOptions(PolicyOptions):
    """Checked options. Both policies accept those that only ``topo-aware-p`` uses."""

    weights: Weights = field(default_factory=Weights)
    """a_cc, a_b, a_d, sum 1."""
    interference: InterferenceProfile | None = None
    """None: interference is not known."""
    interference_scope: str = "socket"
    """What jobs share that interfere, one of ``interference.SCOPES``."""
    minimal_utility: float | None = None
    """Threshold of a job (``topo-aware-p``), 0..1; None: 0.3 for one GPU, 0.5 for more."""
    patience_s: float = 3600.0
    """Time in which a threshold falls to 0, s; inf: it does not fall."""
    single_node: bool = False
    """All GPUs on one machine."""
    anti_collocation: bool = False
    """Every GPU on a different machine."""
    min_bandwidth_gbps: float = 0.0
    """Least link between any two of the job's GPUs, GB/s."""
    network_gbps: float = 0.0
    """Bandwidth between two machines, GB/s; 0: not known, below any min_bandwidth_gbps."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _weights(self.weights))
        check_options(self.interference, self.interference_scope)
        utility = self.minimal_utility
        if utility is not None and not 0.0 <= option_number(utility) <= 1.0:
            raise bad_option("minimal_utility", "a number from 0 to 1", utility)
        if not option_number(self.patience_s) > 0.0:
            raise bad_option("patience_s", "a number of more than 0", self.patience_s)
        for name in ("single_node", "anti_collocation"):
            if not isinstance(getattr(self, name), bool):
                raise bad_option(name, "True or False", getattr(self, name))
        for name in ("min_bandwidth_gbps", "network_gbps"):
            if not 0.0 <= option_number(getattr(self, name)) < math.inf:
                raise bad_option(name, "a number of at least 0", getattr(self, name))
        if self.single_node and self.anti_collocation:
            raise ValueError("single_node and anti_collocation exclude each other; give one")
        if self.anti_collocation and self.one_machine:
            raise ValueError(
                "anti_collocation excludes a min_bandwidth_gbps of more than"
                f" network_gbps ({self.network_gbps:g})"
            )

    @property
    def one_machine(self) -> bool:
        """All GPUs on one machine, by ``single_node`` or because the network is too narrow."""
        return self.single_node or self.network_gbps < self.min_bandwidth_gbps

    def threshold(self, gpus: int, waited_s: float = 0.0) -> float:
        """Least utility for a job; it falls linearly to 0 over ``patience_s``."""
        threshold = self.minimal_utility
        if threshold is None:
            threshold = 0.3 if gpus == 1 else 0.5
        return threshold * max(0.0, 1.0 - waited_s / self.patience_s)


def _weights(value: Any) -> Weights:
    if isinstance(value, Weights):
        return value
    try:
        communication, interference, fragmentation = map(float, value)
        return Weights(communication, interference, fragmentation)
    except (TypeError, ValueError, OverflowError):
        wanted = "three numbers of at least 0 with sum 1"
        wanted += " (communication, interference, fragmentation)"
        raise bad_option("weights", wanted, value) from None
