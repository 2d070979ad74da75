"""Performance model of one application or class on one GPU model, with its quality.

Values only: it is made of plain numbers and back, for the store.

Power model: mean power of a GPU during an iteration, by clock, batch size and GPU count.

PowerFlow's energy of an iteration, ``E = n (P_grad T_grad + P_sync T_sync + P_static T_iter)``,
divided by its time. For the dependence on the clock stands ``P = c0 V + c1 V^2 f``, where the
voltage V is flat up to the clock f0 and linear above it: static power scales with V, the power of
switching with V^2 f. It replaces eqs 13 to 15 (linear below f0, cubic above; eq 15 lacks the
intercept that makes it continuous), is continuous and positive everywhere, and has two coefficients
instead of seven. In eq 12 the parenthesis is read as ``kappa(f) (log(bs + theta) + b)``, with
theta = 1 and b >= 0, so that the factor is positive; one factor of the product is fixed. Eqs 16 and
17 are missing in the paper; nothing stands for them here.

Performance samples: measured times and powers of applications and classes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.features.models.throughput import (
    Amount,
    Conditions,
    IterationTimes,
    Mhz,
    Positive,
    ThroughputParameters,
    between_clocks,
    between_limits,
    iteration_times,
)
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.records import MOST, Text, whole
from slurm_gpu_aware.time_text import counted


@dataclass(frozen=True)
class PowerParameters:
    """Coefficients of the model. Watts of one GPU, at the reference clock and batch size."""

    static_w: Positive  # P_static.
    grad_w: Amount  # P_grad: added during T_grad.
    sync_w: Amount  # P_sync: added during T_sync.
    knee: Amount  # f0 / reference clock: below it the voltage is flat.
    slope: Amount  # Relative growth of V from f0 to f0 plus one reference clock.
    batch_offset: Positive  # b of eq 12: the larger, the less P_grad depends on the batch size.
    reference_batch: Positive


def gpu_power(
    parameters: PowerParameters, times: IterationTimes, batch_size: FloatArray
) -> FloatArray:
    """Mean power of each GPU in W, shape of ``times.total``. Positive and continuous.

    ``batch_size``: samples of each GPU, as in the conditions of ``times``.
    """
    p, ratio = parameters, times.clock_ratio
    volts = _voltage(p, ratio) / _voltage(p, np.float64(1.0))
    batch = _batch_factor(p, batch_size) / _batch_factor(p, np.float64(p.reference_batch))
    grad_share, sync_share = times.grad / times.total, times.sync / times.total
    switching = volts**2 * ratio * (p.grad_w * batch * grad_share + p.sync_w * sync_share)
    return np.asarray(p.static_w * volts + switching, dtype=np.float64)


def _voltage(p: PowerParameters, ratio: FloatArray | np.float64) -> FloatArray:
    return np.asarray(1.0 + p.slope * np.maximum(ratio - p.knee, 0.0), dtype=np.float64)


def _batch_factor(p: PowerParameters, batch: FloatArray | np.float64) -> FloatArray:
    return np.asarray(np.log1p(batch) + p.batch_offset, dtype=np.float64)


TIME_NOISE = 0.01
"""Relative: a time that is longer than expected by less says nothing, as iterations vary."""
NOT_LOCKED = 0.0  # Clock of a sample that was taken without a locked clock.
NOT_LIMITED = 0.0  # Power limit of a sample that was taken under the site's own.
_FORMAT = 1
_STEPS = 200
_LOWEST = 0.3
"""Steps of the clock, and its lowest share of the reference clock, at which limits are met."""
_REACH = 0.04
"""Distance from a measured clock, over the reference clock, within which it says much."""
_DOUBT = 0.1  # Weight of the curve beside that of one measured clock: measurements have noise.
_TINY = 1e-300

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
    limit_error: Amount | None = None
    """That of the times that a power limit makes longer; None: too few were measured."""

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
    batch_size: Amount  # Median batch size of a GPU.
    global_batch: Amount  # Median of batch size times GPUs.


@dataclass(frozen=True)
class Anchor:
    """A setting that was measured, and how far off the fitted curves are there."""

    clock_mhz: Mhz  # Locked SM clock, or the lower one at which the curve's power meets the limit.
    time_ratio: Positive  # Measured time / that of the curve.
    power_ratio: Positive
    limit_w: Amount = NOT_LIMITED
    locked_mhz: Amount = NOT_LOCKED  # Locked SM clock under a power limit.


@dataclass(frozen=True)
class PerformanceModel:
    """Time and power of an iteration, as far as they are known."""

    name: Text  # Name of the application or the class.
    gpu_model: Text
    throughput: ThroughputParameters
    power: PowerParameters
    quality: Quality
    measured: MeasuredRange
    anchors: tuple[Anchor, ...] = ()
    """Settings that were measured with a time, on the number of GPUs and at the batch size of most
    samples."""

    def predict(self, at: Conditions) -> tuple[FloatArray, FloatArray]:
        """(time of an iteration in s, mean power of each GPU in W), shape of the conditions."""
        times = iteration_times(self.throughput, at)
        return times.total, gpu_power(self.power, times, at.batch_size)

    def corrected(self, at: Conditions) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Time and power as `predict`, moved to what was measured, and the error of the time.

        ``at``: conditions of which only the clock, of shape (F,) or (1, F), differs along the last
        axis. Near a measured clock the curves are moved to what was measured there, and the
        held-out error falls to what they then miss of it, as in kriging with a Gaussian kernel:
        they miss more where neighbours disagree. Between two measured clocks
        time is convex in 1 / clock, so what lies on the line between them is the most that it can
        be, with too few conditions for a held-out error, too. The error has the shape of the time;
        NaN or inf: it is not known.
        """
        time_s, power_w = self.predict(at)
        error = np.nan if self.quality.time_error is None else self.quality.time_error
        of_clocks = [anchor for anchor in self.anchors if not anchor.limit_w]
        if not of_clocks:
            return time_s, power_w, np.full_like(time_s, error)
        ordered = sorted(of_clocks, key=lambda anchor: anchor.clock_mhz)
        clocks, times, powers = np.array(
            [(a.clock_mhz, a.time_ratio, a.power_ratio) for a in ordered]
        ).T
        weights, known, beside = self._near(at.clock_mhz, clocks)
        missed = np.abs(np.log(times) - self._near(clocks, clocks)[1] @ np.log(times))
        error = np.maximum(error * beside, weights @ missed)
        time_s, power_w = (
            curve * np.exp(known @ np.log(ratio))
            for curve, ratio in ((time_s, times), (power_w, powers))
        )
        most_s = between_clocks(at.clock_mhz, clocks, self._at_anchors(at, clocks) * times)
        time_s = np.minimum(time_s, most_s)
        if self.quality.time_samples:  # else times are not its own
            error = np.fmin(error, most_s / time_s - 1.0)
        return time_s, power_w, error

    def _near(
        self, mhz: FloatArray, clocks: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weights (..., A) of measured clocks without and with the curve; share of its error."""
        far = (mhz[..., None] - clocks) / (_REACH * self.throughput.reference_mhz)
        near = np.exp(-0.5 * far**2)
        total = near.sum(axis=-1)
        weights = near / np.maximum(total, _TINY)[..., None]
        known = (total / (total + _DOUBT))[..., None] * weights
        return weights, known, np.sqrt(1.0 - np.minimum(near.max(axis=-1), 1.0) ** 2)

    def under_limits(
        self, at: Conditions, limits_w: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Time, power and error of the time as `corrected`, under power limits of each GPU, W.

        ``limits_w``: (L,), above 0, of one clock ascending; ``at``: clocks of shape (L,), all else
        of shape (1,). A limit counts as the clock at which the curve's power meets it, with the
        held-out error of times under limits; of one that lowers no clock the error is NaN. A
        setting that was measured counts as it was measured, moved as `corrected` moves the default
        one, and one between two of these at its clock as the most that it can be, on the
        line over the limit. Where the measured times are not convex, it is inf.
        """
        kept = kept_clocks(self.throughput, self.power, at, limits_w)
        kept_at = replace(at, clock_mhz=kept)
        time_s, power_w, error = self.corrected(kept_at)
        power_w = np.minimum(power_w, limits_w)
        held_out = np.nan if self.quality.limit_error is None else self.quality.limit_error
        error = np.where(kept < at.clock_mhz, np.maximum(error, held_out), np.nan)
        curve_s, curve_w = self.predict(kept_at)
        measured = np.zeros(len(limits_w), np.bool_)
        for one in self.anchors:
            same = (limits_w == one.limit_w) & (at.clock_mhz == one.locked_mhz)
            time_s = np.where(same, one.time_ratio * curve_s, time_s)
            power_w = np.where(same, one.power_ratio * curve_w, power_w)
            error = np.where(same, 0.0, error)
            measured |= same
        time_s, power_w = np.where(measured, self._default_moved(at), 1.0) * (time_s, power_w)
        for mhz in np.unique(at.clock_mhz[measured]):
            known = np.flatnonzero(measured & (at.clock_mhz == mhz))
            low_w, high_w = limits_w[known[[0, -1]]]
            inside = (limits_w > low_w) & (limits_w < high_w) & (at.clock_mhz == mhz) & ~measured
            of_known = limits_w[known], time_s[known], power_w[known]
            time_s[inside], power_w[inside] = between_limits(limits_w[inside], *of_known)
            error[inside] = 0.0
        return time_s, power_w, error

    def _default_moved(self, at: Conditions) -> FloatArray:
        """(2, 1) time and power of `corrected` / those measured, at the highest measured clock."""
        of_clocks = [anchor for anchor in self.anchors if not anchor.limit_w]
        if not of_clocks:
            return np.ones((2, 1))
        top = max(of_clocks, key=lambda anchor: anchor.clock_mhz)
        there = replace(at, clock_mhz=np.array([top.clock_mhz]))
        measured = np.array([[top.time_ratio], [top.power_ratio]]) * self.predict(there)
        return np.asarray(self.corrected(there)[:2] / measured)

    def _at_anchors(self, at: Conditions, clocks_mhz: FloatArray) -> FloatArray:
        """(..., A) times of the curve at the anchors' clocks, ascending, in the same conditions."""
        gpus, nodes, batch = (v[..., :1] for v in (at.gpus, at.nodes, at.batch_size))
        return self.predict(Conditions(gpus, nodes, batch, clocks_mhz))[0]

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
        if self.quality.limit_error is not None:
            parts.append(f"time under power limits within {100 * self.quality.limit_error:.1f}%")
        count = max(self.quality.time_samples, self.quality.power_samples)
        return f"{', '.join(parts)} ({counted(count, 'condition')})"

    def values(self) -> dict[str, Any]:
        """Plain values, for `model_from_values`."""
        return {"format": _FORMAT, **asdict(self)}


def kept_clocks(
    throughput: ThroughputParameters, power: PowerParameters, at: Conditions, limits_w: FloatArray
) -> FloatArray:
    """(N,) clocks of ``at``, or lower ones at which a GPU's power meets its limit, W (0: none).

    The driver does so for a steady program: it lowers the clock until the power is within it.
    """
    top = throughput.reference_mhz
    grid = np.linspace(_LOWEST * top, top, _STEPS)
    gpus, nodes, batch = (v[:, None] for v in (at.gpus, at.nodes, at.batch_size))
    times = iteration_times(throughput, Conditions(gpus, nodes, batch, grid[None, :]))
    watts = np.maximum.accumulate(gpu_power(power, times, batch), axis=1)
    watts = np.broadcast_to(watts, (len(limits_w), _STEPS))
    kept = [
        np.interp(limit, row, grid, right=np.inf) if limit else np.inf
        for limit, row in zip(limits_w, watts, strict=True)
    ]
    return np.minimum(at.clock_mhz, kept)


def model_from_values(values: object) -> PerformanceModel:
    """The model of `PerformanceModel.values`. Raises ValueError for anything else."""
    if not isinstance(values, Mapping) or values.get("format") != _FORMAT:
        raise ValueError("not a performance model of this release")
    return records.read(values, PerformanceModel)


MODEL: Facet[str | None] = Facet("performance model", None)
"""Of a request: the model that the user names. The user's own measurements come first."""
APPLICATION, CLASS = "application", "class"  # What a performance model is of.
UNKNOWN_BATCH = 0.0  # Batch size of a sample of a job of which only its nodes were asked.


class PerformanceSample(NamedTuple):
    """Time and power of one iteration under known conditions."""

    gpus: int
    nodes: int
    batch_size: float
    """Samples that each GPU processes in one iteration; 1.0 where the work has no batch.
    ``UNKNOWN_BATCH``: as in the application's other samples."""
    clock_mhz: float  # SM clock; ``NOT_LOCKED``: the default clock.
    time_s: float  # Time of one iteration; NaN: not measured, only the power was.
    power_w: float | None = None
    """Mean power of all GPUs together during the iteration; None: not measured."""
    limit_w: float = NOT_LIMITED
    """Power limit of each GPU, with a locked clock; ``NOT_LIMITED``: the site's own."""


class NamedSample(NamedTuple):
    """A sample of an application or class on a GPU model."""

    name: str
    gpu_model: str  # Empty: not known.
    taken_at: float  # Unix time.
    sample: PerformanceSample
    app_class: str = ""  # Class of the application; empty: not known.


def unnamed(app_class: str) -> str:
    """What stands for the application of a job that names none: no comment may name it."""
    return f"class {app_class}"


def is_unnamed(name: str) -> bool:
    """Whether samples of this name are of jobs that name no application."""
    return name.rpartition("/")[2].startswith(unnamed(""))


def own_name(user: str, application: str) -> str:
    """Name of an application that a user has measured: other users' jobs do not look it up.

    ``/`` stands in no name that a comment or an import may give, so that the user is unambiguous.
    """
    return f"{user}/{application}"


def owner_of(name: str) -> str:
    """The user of a name of `own_name`; empty: it is one of the site."""
    return name.rpartition("/")[0]
