"""Power of a cluster in a round: the limit, what idle GPUs draw, and what running jobs draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.facets import Facet


@dataclass(frozen=True, eq=False)
class PoweredJob:
    """A running job as a consumer of power."""

    gpus: int
    max_w: float
    """Sum of the power limits of its GPUs: what it counts with if it has no table."""
    table: SizeTable | None = None
    clock_mhz: int | None = None
    """Locked SM clock; None: the default clock."""
    adjustable: bool = False
    """Its clock may be changed: an agent works on its nodes, and the job left the clock to us."""
    starts: bool = False
    """It starts in this round: it draws no power yet."""


@dataclass(frozen=True, eq=False)
class PowerState:
    """What a round must know to keep a power limit."""

    max_w: FloatArray
    """(N, W) power limit of each GPU; 0 where there is none."""
    idle_w: FloatArray
    """(N, W) power of each GPU without a job."""
    limit_w: float = math.inf
    """Limit for all GPUs of the site, idle ones included; inf: none."""
    running: Mapping[str, PoweredJob] = field(default_factory=dict)
    """Slurm's job ID -> running job."""


POWER: Facet[PowerState | None] = Facet("power", None, PowerState)
"""Of a round; None: there is no limit, and no clock changes."""
