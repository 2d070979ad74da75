"""Throughput model: time of one iteration by GPUs, nodes, batch size and SM clock.

PowerFlow, eqs 2 to 5, with two corrections. Eq 4 prints the local coefficient in the case of
several nodes; the coefficient between nodes is read. Eq 5 prints the outer exponent as gamma2; with
it the times would not add up to a time unless gamma2 = 1, so 1 / gamma2 is read, and the limits
that the text names (a sum, a maximum) hold.

Coefficients are times at the reference clock, and shares of them that scale with 1 / f. This is the
printed form ``a + k / f`` in other coordinates: both parts stay positive at every clock.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_gpu_aware.bounds import MAX_MHZ
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.records import above, number

_TINY_S = 1e-30  # Added to each part, so that a power of a part that does not occur is defined.
_UNSTEADY = 0.0075
"""Measured times that rise with the clock, or bend, by a larger share are of no steady program."""
Amount = Annotated[float, number(0, 1e30)]
Positive = Annotated[float, above(0, 1e30)]
Share = Annotated[float, number(0, 1)]
Overlap = Annotated[float, number(1, 1e3)]
Mhz = Annotated[float, number(1, MAX_MHZ)]


@dataclass(frozen=True, eq=False)
class Conditions:
    """Conditions of iterations; arrays of one shape, or of shapes that broadcast together."""

    gpus: FloatArray
    nodes: FloatArray
    batch_size: FloatArray  # Samples of each GPU in one iteration.
    clock_mhz: FloatArray


@dataclass(frozen=True)
class ThroughputParameters:
    """Coefficients of the model. Times in seconds, at the reference clock; shares are 0 to 1."""

    io_s: Amount  # T_IO, constant part.
    io_sample_s: Amount  # T_IO per sample that the GPUs of one node read together.
    grad_s: Amount  # T_grad, constant part; it does not depend on the clock.
    grad_sample_s: Amount  # T_grad per sample of a GPU.
    grad_clock_share: Share  # Share of ``grad_sample_s`` that scales with 1 / f.
    sync_local_s: Amount  # T_sync of 2 GPUs of one node.
    sync_local_gpu_s: Amount  # T_sync per further GPU of one node.
    sync_node_s: Amount  # T_sync of 2 GPUs of two nodes.
    sync_node_gpu_s: Amount  # T_sync per further GPU, on several nodes.
    sync_clock_share: Share  # Share of T_sync that scales with 1 / f.
    gamma1: Overlap
    """Overlap of T_IO with T_grad: 1 adds them, a large number takes the longer one."""
    gamma2: Overlap  # Overlap of T_sync with both, in the same way.
    sustained: Annotated[float, above(0, 1)]
    """Highest clock that the power limit lets the GPU keep in this work, over the reference clock;
    the driver runs no faster, whatever clock is locked."""
    reference_mhz: Mhz


@dataclass(frozen=True, eq=False)
class IterationTimes:
    """Times of iterations and of their parts, in s.

    ``total`` has the conditions' shape, the parts a shape that broadcasts to it.
    """

    io: FloatArray
    grad: FloatArray
    sync: FloatArray
    total: FloatArray
    clock_ratio: FloatArray  # The clock that the GPUs keep, over the reference clock.


def iteration_times(parameters: ThroughputParameters, at: Conditions) -> IterationTimes:
    """T_iter and its parts. Positive and continuous for positive conditions.

    A single GPU has no T_sync; GPUs beyond the second one each add the same time (eq 4). A fit
    passes arrays of shape (K, 1) as coefficients and gets arrays of shape (K, conditions).
    """
    p = parameters
    kept = np.minimum(at.clock_mhz / p.reference_mhz, p.sustained)
    slower = 1.0 / kept
    io = p.io_s + p.io_sample_s * at.batch_size * at.gpus / at.nodes
    grad = p.grad_s + p.grad_sample_s * at.batch_size * _scaled(p.grad_clock_share, slower)
    further = np.maximum(at.gpus - 2.0, 0.0)
    local = p.sync_local_s + p.sync_local_gpu_s * further
    across = p.sync_node_s + p.sync_node_gpu_s * further
    sync = np.where(at.nodes > 1, across, local) * _scaled(p.sync_clock_share, slower)
    sync = np.where(at.gpus > 1, sync, 0.0)
    total = _overlapped(_overlapped(io, grad, p.gamma1), sync, p.gamma2)
    return IterationTimes(io, grad, sync, total, kept)


def _scaled(share: float, ratio: FloatArray) -> FloatArray:
    return np.asarray(1.0 - share + share * ratio, dtype=np.float64)


def _overlapped(a: FloatArray, b: FloatArray, gamma: float) -> FloatArray:
    """(a^gamma + b^gamma)^(1/gamma), in logarithms so that no power overflows."""
    logs = gamma * np.log(a + _TINY_S), gamma * np.log(b + _TINY_S)
    return np.asarray(np.exp(np.logaddexp(*logs) / gamma), dtype=np.float64)


def between_clocks(clock_mhz: FloatArray, known_mhz: FloatArray, known_s: FloatArray) -> FloatArray:
    """Times on the lines between known clocks (ascending) over 1 / clock; inf beyond them.

    ``known_s``: (..., A). Where it rises with the clock, or is not convex over 1 / clock, it bounds
    nothing: inf.
    """
    return _on_lines(1.0 / clock_mhz.reshape(-1), 1.0 / known_mhz, known_s)


def _on_lines(at: FloatArray, known: FloatArray, known_s: FloatArray) -> FloatArray:
    """Times at places between known ones; these ascend or descend, and times fall along them."""
    if len(known) < 2:
        return np.full((*known_s.shape[:-1], len(at)), np.inf)
    sign = 1.0 if known[0] < known[-1] else -1.0
    right = np.clip(np.searchsorted(sign * known, sign * at), 1, len(known) - 1)
    part = (at - known[right - 1]) / (known[right] - known[right - 1])
    found = known_s[..., right - 1] * (1.0 - part) + known_s[..., right] * part
    inside = (at >= known.min()) & (at <= known.max())
    falls = np.diff(known_s, axis=-1) <= _UNSTEADY * known_s[..., -1:]
    middle = (known[1:-1] - known[:-2]) / (known[2:] - known[:-2])
    lines = known_s[..., :-2] * (1.0 - middle) + known_s[..., 2:] * middle
    convex = known_s[..., 1:-1] <= (1.0 + _UNSTEADY) * lines
    sound = falls.all(axis=-1, keepdims=True) & convex.all(axis=-1, keepdims=True)
    return np.where(inside & sound, found, np.inf)


def between_limits(
    limits_w: FloatArray, known_w: FloatArray, known_s: FloatArray, known_power_w: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The most that times and powers can be under limits between known ones (ascending).

    Times lie on the lines over the limit: where power is convex in the clock, the clock is concave
    in the limit, and 1 / clock convex. Over 1 / limit it is concave far above the idle power.
    """
    above = np.searchsorted(known_w, limits_w)
    used = known_power_w / known_w
    power_w = limits_w * np.maximum(used[above - 1], used[above])
    return _on_lines(limits_w, known_w, known_s), np.minimum(known_power_w[above], power_w)
