"""Utility of a set of GPUs for a job (Amaral et al., SC'17, section 4.2).

Eq. 1 is used, with each term relative to the best and the worst value of a job of this size on idle
machines:

    cost = a_cc (t - t_best) / (t_worst - t_best) + a_b (I - 1) / (I_worst - 1) + a_d w / w_worst
    U = 1 - cost, at least 0

U is 1 for a perfect set and, with equal weights, a third less for the worst in one term, for any
machine and job size. A term that cannot differ (one GPU has no communication) costs nothing. If I
is not known, a_cc and a_d share its weight.

====== ======================================================================================
t      eq. 3: sum of shortest path lengths over all pairs of the job's GPUs (``topology.locality``)
t_best, t_worst  least and largest t on the fewest idle machines that can hold the job. A set on
       more machines costs more than 1: U may be 0, but the order remains correct
I      eq. 4, inverted: mean of co-located / solo time (``interference``)
w      eq. 5: mean of free GPUs / GPUs over the sockets of the job, after its start
====== ======================================================================================

Misprints: eq. 2 gives the utility as the sum of a/term, which is infinite if a term is 0 and does
not fit the thresholds (0.3, 0.5). Eq. 4 as printed falls with interference. The mean of eq. 5 over
all sockets of a cluster would be the same for every choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology.locality import distances, path_sum, sockets_of
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of, masks_of_size, slots_of


@dataclass(frozen=True)
class Weights:
    """a_cc, a_b, a_d: weights of communication, interference and fragmentation. Sum 1."""

    communication: float = 1 / 3
    interference: float = 1 / 3
    fragmentation: float = 1 / 3

    def __post_init__(self) -> None:
        values = (self.communication, self.interference, self.fragmentation)
        if not all(0.0 <= v <= 1.0 for v in values) or abs(sum(values) - 1.0) > 1e-6:
            raise ValueError("weights must be three numbers of at least 0 with sum 1")

    def without_interference(self) -> Weights:
        """The weights with a_b shared among the others in proportion."""
        known = self.communication + self.fragmentation
        if known == 0.0:
            return Weights(0.5, 0.0, 0.5)
        return Weights(self.communication / known, 0.0, self.fragmentation / known)


@dataclass(frozen=True)
class Scale:
    """Best and worst values of the terms."""

    t_best: int
    t_worst: int
    i_worst: float
    w_worst: float

    def communication(self, t: FloatArray | float) -> FloatArray | float:
        """Cost of t; more than 1 for a set on more machines than necessary."""
        span = self.t_worst - self.t_best
        return np.maximum(t - self.t_best, 0.0) / (span if span > 0 else max(self.t_best, 1))

    def interference(self, i: FloatArray | float) -> FloatArray | float:
        """Cost of I, 0..1."""
        worst = self.i_worst - 1.0
        return np.clip((i - 1.0) / worst, 0.0, 1.0) if worst > 0.0 else i * 0.0

    def fragmentation(self, w: FloatArray | float) -> FloatArray | float:
        """Cost of w; may exceed 1 for a set on more machines than necessary."""
        return w / (self.w_worst if self.w_worst > 0.0 else 1.0)

    def cost(
        self, weights: Weights, t: FloatArray | float, i: FloatArray | float, w: FloatArray | float
    ) -> FloatArray:
        """Eq. 1, rounded to 1e-9, so that sums in another order compare equal."""
        total = weights.communication * self.communication(t)
        total = total + weights.interference * self.interference(i)
        return np.round(total + weights.fragmentation * self.fragmentation(w), 9)


@dataclass(frozen=True)
class Terms:
    """The three terms of one set, and their cost."""

    t: int
    i: float
    w: float
    cost: float
    """Eq. 1; may exceed 1."""

    @property
    def utility(self) -> float:
        """U, within 0..1."""
        return min(1.0, max(0.0, 1.0 - self.cost))


@lru_cache(maxsize=1 << 16)
def free_shares(graph: HardwareGraph, exists: int, free: int, chosen: int) -> tuple[float, int]:
    """Sum of free / existing GPUs over the sockets of ``chosen``, and their number.

    w (eq. 5) is the quotient. GPUs are masks; those in ``chosen`` do not count as free.
    """
    left, total, used = free & ~chosen, 0.0, 0
    for socket in sockets_of(graph, exists):
        if socket & chosen:
            total += (left & socket).bit_count() / socket.bit_count()
            used += 1
    return total, used


@lru_cache(maxsize=4096)
def extremes(graph: HardwareGraph, exists: int, k: int) -> tuple[int, int, float]:
    """Least t, largest t and largest w of ``k`` GPUs of an idle machine.

    Exact up to 16 slots; above, t is that of greedily packed and spread sets.
    """
    if graph.n <= MAX_EXACT:
        masks = masks_of_size(graph.n, k)
        masks = masks[(masks & ~np.int64(exists)) == 0]
        bits = ((masks[:, None] >> np.arange(graph.n)) & 1).astype(np.float64)
        t = np.rint(((bits @ distances(graph)) * bits).sum(axis=1) / 2).astype(np.int64)
        w = _idle_shares(graph, exists, bits)
        return int(t.min()), int(t.max()), float(w.max())
    packed = [path_sum(graph, _greedy(graph, exists, k, s, 1)) for s in slots_of(exists)]
    spread = [path_sum(graph, _greedy(graph, exists, k, s, -1)) for s in slots_of(exists)]
    worst = max(1 - 1 / socket.bit_count() for socket in sockets_of(graph, exists))
    return min(packed), max(spread), worst


def _idle_shares(graph: HardwareGraph, exists: int, bits: FloatArray) -> FloatArray:
    """(S,) w of each set on an idle machine."""
    total, used = np.zeros((2, len(bits)))
    for socket in sockets_of(graph, exists):
        taken = bits[:, list(slots_of(socket))].sum(axis=1)
        total += np.where(taken > 0, 1.0 - taken / socket.bit_count(), 0.0)
        used += taken > 0
    return np.asarray(total / np.maximum(used, 1.0))


def _greedy(graph: HardwareGraph, exists: int, k: int, start: int, sign: int) -> int:
    """``k`` GPUs, each the nearest (with ``sign`` -1 the farthest) to those before."""
    length = distances(graph) * sign
    chosen = [start]
    while len(chosen) < k:
        rest = [s for s in slots_of(exists) if s not in chosen]
        chosen.append(min(rest, key=lambda s: (int(length[s, chosen].sum()), s)))
    return mask_of(chosen)
