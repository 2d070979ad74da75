"""Assignment: the nodes and GPUs of one job, and the reason for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.model.cluster import Gpus


@dataclass(frozen=True)
class Assignment:
    """Exact nodes and GPUs for one job."""

    job_id: str
    nodes: tuple[int, ...]
    """Node indices, ascending."""
    slots: tuple[tuple[int, ...], ...]
    """Slots (Slurm's GPU indices) per node, ascending, parallel to ``nodes``."""
    policy: str
    """Registry name of the policy that chose."""
    score: float
    """max V over the chosen GPUs for the job's class (binned PM score; lower is better)."""
    level: str
    """Name of the locality level that the set needs."""
    slowdown: float
    """Predicted t_iter / t_orig = L x max V (PAL, eq. 1)."""
    exact: bool = True
    """False on plain nodes and with ``--exclusive``: Slurm chooses the GPUs on the nodes."""
    clock_mhz: int | None = None
    """SM clock to lock; None: the default clock."""
    victims: tuple[str, ...] = ()
    """Running jobs that Slurm preempts for this job; unless ``exact``, Slurm chooses among them."""
    kept_off: tuple[int, ...] = ()
    """Node indices on which Slurm must not start a job whose GPUs it chooses, ascending."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """The policy's account as JSON values: cells tried, candidates, ties, bandwidths. Every policy
    sets ``summary`` (one sentence)."""

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return sum(map(len, self.slots))

    @property
    def gpus(self) -> Gpus:
        """(node, slots) pairs."""
        return tuple(zip(self.nodes, self.slots, strict=True))
