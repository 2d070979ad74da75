"""Performance model of one application or class on one GPU model, with its quality.

Values only: it is made of plain numbers and back, for the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.features.models.power import PowerParameters, gpu_power
from slurm_gpu_aware.features.models.throughput import (
    Amount,
    Conditions,
    Mhz,
    ThroughputParameters,
    iteration_times,
)
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.records import MOST, Text, whole

_FORMAT = 1

Gpus = Annotated[int, whole(1, MAX_GPUS)]
Samples = Annotated[int, whole(0, MOST)]


@dataclass(frozen=True)
class Quality:
    """How well a model predicts samples that its fit has not seen."""

    time_samples: Samples
    """Different conditions with a time; several runs of one condition count once. 0: no time was
    measured, and that of the class counts."""
    power_samples: Samples
    time_error: Amount | None = None
    """Mean absolute relative error of times, held out; None: too few conditions to test it."""
    power_error: Amount | None = None
    energy_error: Amount | None = None

    @property
    def worst(self) -> float:
        """The largest error; 0: none was tested."""
        return max(e or 0.0 for e in (self.time_error, self.power_error, self.energy_error))


@dataclass(frozen=True)
class MeasuredRange:
    """Conditions that were measured."""

    least_gpus: Gpus
    most_gpus: Gpus
    low_mhz: Mhz
    """Lowest clock that was measured, for this application or for the model it builds on."""
    high_mhz: Mhz
    batch_size: Amount
    """Median batch size of a GPU."""
    global_batch: Amount
    """Median of batch size times GPUs."""


@dataclass(frozen=True)
class PerformanceModel:
    """Time and power of an iteration, as far as they are known."""

    name: Text
    """Name of the application or the class."""
    gpu_model: Text
    throughput: ThroughputParameters
    power: PowerParameters
    quality: Quality
    measured: MeasuredRange

    def predict(self, at: Conditions) -> tuple[FloatArray, FloatArray]:
        """(time of an iteration in s, mean power of each GPU in W), shape of the conditions."""
        times = iteration_times(self.throughput, at)
        return times.total, gpu_power(self.power, times, at.batch_size)

    def knows_gpus(self, gpus: int) -> bool:
        """Whether the time on so many GPUs follows from measurements.

        One doubling beyond the measured counts is allowed if several counts were measured.
        """
        least, most = self.measured.least_gpus, self.measured.most_gpus
        return least <= gpus <= (2 * most if most > least else most)

    def knows_clock(self, clock_mhz: float) -> bool:
        """Whether time and power at a clock follow from measurements."""
        return clock_mhz >= min(self.measured.low_mhz, self.throughput.reference_mhz)

    def confidence(self) -> str:
        """The quality in words."""
        parts = [
            f"{what} {'not tested' if error is None else f'within {100 * error:.1f}%'}"
            for what, error in (
                ("time", self.quality.time_error),
                ("power", self.quality.power_error),
            )
        ]
        if self.quality.power_samples == 0:
            parts[1] = "power not measured"
        if self.quality.time_samples == 0:
            parts[0] = "time not measured, as that of its class"
        count = max(self.quality.time_samples, self.quality.power_samples)
        return f"{', '.join(parts)} ({count} condition{'' if count == 1 else 's'})"

    def values(self) -> dict[str, Any]:
        """Plain values, for `model_from_values`."""
        return {"format": _FORMAT, **asdict(self)}


def model_from_values(values: object) -> PerformanceModel:
    """The model of `PerformanceModel.values`. Raises ValueError for anything else."""
    if not isinstance(values, Mapping) or values.get("format") != _FORMAT:
        raise ValueError("not a performance model of this release")
    return records.read(values, PerformanceModel)
