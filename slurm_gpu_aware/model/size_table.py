"""Size table: time and power of a job by its number of GPUs and its SM clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray

__all__ = ["SizeTable"]


@dataclass(frozen=True, eq=False)
class SizeTable:
    """What a performance model predicts for one application on one GPU model.

    Jobs of the same application share one table; tables are compared by identity. The energy of an
    iteration is ``time_s * power_w`` (PowerFlow, E_iter).
    """

    gpus: IntArray
    """(S,) numbers of GPUs, ascending."""
    clocks_mhz: IntArray
    """(F,) SM clocks that can be locked, ascending."""
    time_s: FloatArray
    """(S, F) time of one iteration, or of any other unit of work; NaN: not known."""
    power_w: FloatArray
    """(S, F) mean power of all GPUs of the job together; NaN: not known."""
    source: str = ""
    """Name of the model and its quality, in words."""

    def __post_init__(self) -> None:
        shape = (len(self.gpus), len(self.clocks_mhz))
        if min(shape) < 1 or self.time_s.shape != shape or self.power_w.shape != shape:
            raise ValueError(f"time_s and power_w must have the shape {shape}")
        for name, axis in (("gpus", self.gpus), ("clocks_mhz", self.clocks_mhz)):
            if axis[0] < 1 or np.any(np.diff(axis) <= 0):
                raise ValueError(f"{name} must be positive and ascending")
