"""Settings of a simulated run: policy, order of the queue, rounds, and what slows jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.placement.drb.interference import InterferenceProfile
from slurm_gpu_aware.placement.registry import DEFAULT
from slurm_gpu_aware.planning.plan import PlanSettings

__all__ = ["MEASURED_SHARE", "ORDERS", "SimSettings", "parse_policy"]

MEASURED_SHARE = 0.107
"""Communication share of AlexNet, batch size 1, on two P100 of an IBM S822LC: 127.4 s with NVLink
inside a socket (40 GB/s), 159.1 s across sockets (12 GB/s): 1.249 = 1 + c (40/12 - 1). Source:
solo times published with Amaral et al., SC'17."""

ORDERS: Mapping[str, str] = {
    "fifo": "first in, first out",
    "las": "least attained service, two-level queue (Tiresias)",
    "srtf": "shortest remaining time first",
    "priority": "the trace's own priority, then submission (Slurm)",
    "edf": "earliest deadline first; jobs without one last",
}


@dataclass(frozen=True)
class SimSettings:
    """Settings of one run."""

    policy: str = DEFAULT
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    order: str = "fifo"
    """A key of :data:`ORDERS`."""
    round_s: float | None = None
    """Plan at multiples of this (PAL: 300); None: at every arrival and end."""
    sticky: bool = True
    """A job keeps its GPUs until it ends or is preempted; False: every round places all jobs."""
    backfill: bool = False
    """EASY backfill; needs time limits (see ``limit_factor``)."""
    backfill_depth: int = PlanSettings.backfill_depth
    migration_s: float = 60.0
    """Time without progress after a restart or a move of a job (checkpoint, restore)."""
    limit_factor: float = 1.5
    """Time limit of a job without one in the trace, as a multiple of its duration. A recorded job
    without a limit keeps none. Limits only inform backfill; they end no job."""
    las_threshold_gpu_s: float = 3600.0
    """Attained service at which LAS moves a job to the second queue. Units: GPU s."""
    classes: tuple[str, ...] = ("A", "B", "C")
    locality: bool = True
    """Jobs that span nodes (or other levels) are slowed by L."""
    variability: bool = True
    """Jobs run at the pace of their slowest GPU."""
    communication_share: float | None = None
    """Share of a bandwidth-sensitive job's time that is communication at the best bandwidth for
    its GPU count on the machine (``MEASURED_SHARE`` is one); a job of the trace may have its own.
    None: bandwidth does not affect run times."""
    interference: InterferenceProfile | None = None
    """Measured slowdown of pairs of jobs on one machine; None: no interference."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise PolicyError(f"unknown order {self.order!r}; known: {', '.join(ORDERS)}")

    @property
    def preemptive(self) -> bool:
        """Whether the order can take GPUs from a running job."""
        return self.order in ("las", "srtf")

    @property
    def label(self) -> str:
        """``pal`` or ``pal:non-sticky``, as :func:`parse_policy` reads it."""
        return self.policy if self.sticky else f"{self.policy}:non-sticky"


def parse_policy(text: str, base: SimSettings) -> SimSettings:
    """Settings of ``NAME``, ``NAME:sticky`` or ``NAME:non-sticky`` on top of ``base``.

    Raises PolicyError if the part after the colon is invalid; the name is not checked here.
    """
    name, colon, how = text.partition(":")
    if colon and how not in ("sticky", "non-sticky"):
        raise PolicyError(f"policy {text!r}: expected NAME, NAME:sticky or NAME:non-sticky")
    return replace(base, policy=name, sticky=how != "non-sticky" if colon else base.sticky)
