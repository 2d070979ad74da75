"""Performance sample: one measured time and power of an application on some GPUs."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PerformanceSample"]


class PerformanceSample(NamedTuple):
    """Time and power of one iteration under known conditions."""

    gpus: int
    nodes: int
    batch_size: float
    """Samples that each GPU processes in one iteration; 1.0 where the work has no batch."""
    clock_mhz: float
    """SM clock."""
    time_s: float
    """Time of one iteration."""
    power_w: float | None = None
    """Mean power of all GPUs together during the iteration; None: not measured."""
