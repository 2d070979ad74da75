"""Performance model of one application or class on one GPU model, with its quality.

Values only: it is made of plain numbers and back, for the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from slurm_gpu_aware.bounds import MAX_GPUS, MAX_MHZ, quoted
from slurm_gpu_aware.features.models.power import PowerParameters, gpu_power
from slurm_gpu_aware.features.models.throughput import (
    Conditions,
    ThroughputParameters,
    iteration_times,
)
from slurm_gpu_aware.model.arrays import FloatArray

_FORMAT = 1
_MOST = 1e30
_AT_LEAST_ONE = ("gamma1", "gamma2")
_SHARES = ("grad_clock_share", "sync_clock_share", "sustained")
_POSITIVE = ("reference_mhz", "reference_batch", "sustained", "batch_offset", "static_w")

T = TypeVar("T")


@dataclass(frozen=True)
class Quality:
    """How well a model predicts samples that its fit has not seen."""

    time_samples: int
    """Different conditions with a time; several runs of one condition count once. 0: no time was
    measured, and that of the class counts."""
    power_samples: int
    time_error: float | None = None
    """Mean absolute relative error of times, held out; None: too few conditions to test it."""
    power_error: float | None = None
    energy_error: float | None = None

    @property
    def worst(self) -> float:
        """The largest error; 0: none was tested."""
        return max(e or 0.0 for e in (self.time_error, self.power_error, self.energy_error))


@dataclass(frozen=True)
class MeasuredRange:
    """Conditions that were measured."""

    least_gpus: int
    most_gpus: int
    low_mhz: float
    """Lowest clock that was measured, for this application or for the model it builds on."""
    high_mhz: float
    batch_size: float
    """Median batch size of a GPU."""
    global_batch: float
    """Median of batch size times GPUs."""


@dataclass(frozen=True)
class PerformanceModel:
    """Time and power of an iteration, as far as they are known."""

    name: str
    """Name of the application or the class."""
    gpu_model: str
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
    name, gpu_model = values.get("name"), values.get("gpu_model")
    if not isinstance(name, str) or not isinstance(gpu_model, str):
        raise ValueError("a performance model needs name and gpu_model")
    return PerformanceModel(
        name,
        gpu_model,
        _part(ThroughputParameters, values.get("throughput")),
        _part(PowerParameters, values.get("power")),
        _part(Quality, values.get("quality")),
        _part(MeasuredRange, values.get("measured")),
    )


def _part(kind: type[T], values: object) -> T:
    """A dataclass of numbers; each is checked."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{kind.__name__}: expected numbers by name, not {quoted(values)}")
    own = fields(kind)  # type: ignore[arg-type]
    return kind(**{f.name: _number(f.name, str(f.type), values.get(f.name)) for f in own})


def _number(name: str, kind: str, value: object) -> int | float | None:
    if value is None and "None" in kind:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a number, not {quoted(value)}")
    least, most = _bounds(name)
    if not least <= value <= most or (name in _POSITIVE and value <= 0):  # refuses NaN, too
        raise ValueError(f"{name}: {quoted(value)} is out of bounds")
    return int(value) if kind == "int" else float(value)


def _bounds(name: str) -> tuple[float, float]:
    if name in _SHARES:
        return 0.0, 1.0
    if name in _AT_LEAST_ONE:
        return 1.0, 1e3
    if name.endswith("_mhz"):
        return 1.0, MAX_MHZ
    if name.endswith("_gpus"):
        return 1.0, MAX_GPUS
    return 0.0, _MOST
