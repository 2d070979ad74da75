"""Utility of GPUs, and interference of jobs on one socket or machine (Amaral et al., SC'17).

Jobs interfere if they share a socket (section 5.2.2) or, by option, a machine (section 3.3). Eq. 4
is a mean of solo / co-located time, which falls with interference, but eqs. 1 and 2 treat I as a
cost. Here every quotient is inverted: co-located / solo, at least 1. I = 1 means no interference;
larger is worse.

Options of ``topo-aware`` and ``topo-aware-p``.

Utility of a set of GPUs for a job (section 4.2): eq. 1 is used, with each term relative to the best
and the worst value of a job of this size on idle machines:

    cost = a_cc (t - t_best) / (t_worst - t_best) + a_b (I - 1) / (I_worst - 1) + a_d w / w_worst
    U = 1 - cost, at least 0

U is 1 for a perfect set and, with equal weights, a third less for the worst in one term, for any
machine and job size. A term that cannot differ (one GPU has no communication) costs nothing. If I
is not known, a_cc and a_d share its weight.

====== ======================================================================================
t      eq. 3: sum of shortest path lengths over all pairs of the job's GPUs (``topology.locality``)
t_best, t_worst  least and largest t on the fewest idle machines that can hold the job. A set on
       more machines costs more than 1: U may be 0, but the order remains correct
I      eq. 4, inverted: mean of co-located / solo time
w      eq. 5: mean of free GPUs / GPUs over the sockets of the job, after its start
====== ======================================================================================

Misprints: eq. 2 gives the utility as the sum of a/term, which is infinite if a term is 0 and does
not fit the thresholds (0.3, 0.5). Eq. 4 as printed falls with interference. The mean of eq. 5 over
all sockets of a cluster would be the same for every choice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.level_views import MaskArray, by_identity
from slurm_gpu_aware.placement.policy import PolicyOptions, bad_option, option_number
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
    cost: float  # Eq. 1; may exceed 1.

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


SCOPES = ("socket", "machine")  # What jobs share that interfere; an unknown socket is the machine.

Workload = tuple[str, int]  # (application, GPUs) of a job.


@dataclass(frozen=True, eq=False)
class InterferenceProfile:
    """Measured run times of applications alone and in pairs. Units: s, for any fixed work."""

    solo: Mapping[Workload, float]  # Run time alone on the machine.
    together: Mapping[tuple[Workload, Workload], float] = field(default_factory=dict)
    """(job, neighbour) -> run time of the job beside the neighbour; absent: not measured."""

    def __post_init__(self) -> None:
        for what, seconds in (*self.solo.items(), *self.together.items()):
            if not seconds > 0 or seconds == float("inf"):
                raise ValueError(f"run time of {what} must be positive, not {seconds}")

    def slowdown(self, job: Workload, neighbour: Workload) -> float | None:
        """Co-located / solo time of ``job``, at least 1 (less is noise); None: not measured."""
        solo, beside = self.solo.get(job), self.together.get((job, neighbour))
        return None if solo is None or beside is None else max(1.0, beside / solo)

    @cached_property
    def worst(self) -> float:
        """I_w: the largest measured slowdown; 1.0 if there is none."""
        known = (self.slowdown(job, neighbour) for job, neighbour in self.together)
        return max((ratio for ratio in known if ratio is not None), default=1.0)

    def __repr__(self) -> str:
        text = repr((sorted(self.solo.items()), sorted(self.together.items())))
        digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return f"InterferenceProfile({len(self.together)} pairs, {digest})"


def check_options(interference: object, scope: object) -> None:
    """Raise ValueError if these options of a policy are no profile or None, or not of `SCOPES`."""
    if not isinstance(interference, InterferenceProfile | None):
        raise bad_option("interference", "an InterferenceProfile or None", interference)
    if scope not in SCOPES:
        raise bad_option("interference_scope", " or ".join(SCOPES), scope)


class Neighbours(NamedTuple):
    """Running jobs with GPUs on the same sockets of a machine, as one new job sees them."""

    sockets: int  # GPUs of these sockets, as a mask.
    jobs: int
    suffered: float  # Sum of the slowdowns that the new job causes them.
    caused: float  # Sum of the slowdowns, each less 1, that they cause the new job.


def interference(neighbours: tuple[Neighbours, ...], chosen: int) -> float:
    """I >= 1 of GPUs (a mask) of a machine beside its jobs.

    The mean of co-located / solo time over the new job and those that share a socket with it. The
    slowdowns of the new job by its neighbours add up.
    """
    jobs, total = 1, 1.0
    for there in neighbours:
        if there.sockets & chosen:
            jobs += there.jobs
            total += there.suffered + there.caused
    return total / jobs


def neighbours_on(
    profile: InterferenceProfile, job: Workload, cluster: Cluster, sockets: MaskArray
) -> tuple[IntArray, list[tuple[Neighbours, ...]]]:
    """(N,) number of each machine's neighbours for ``job``, and the distinct ones by number.

    A pair that was not measured, or an unknown application, counts as no interference.
    ``sockets``: (N, W) GPUs of the socket of each GPU, as masks.
    """
    n = cluster.shape[0]
    holders = _holders(cluster.running)
    held = ~cluster.free[holders.node, holders.slot]
    code = holders.job[held] * n + holders.node[held]  # ascending
    found: dict[tuple[tuple[int, int, float, float], ...], int] = {(): 0}
    number = np.zeros(n, dtype=np.int64)
    first = np.flatnonzero(np.diff(code, prepend=-1))
    if not len(first):
        return number, [()]
    zone = sockets[holders.node[held], holders.slot[held]]
    used = np.bitwise_or.reduceat(zone, first)
    node, workload = code[first] % n, holders.workload[code[first] // n]
    suffered = np.array([profile.slowdown(w, job) or 1.0 for w in holders.known] + [1.0])
    caused = np.array([(profile.slowdown(job, w) or 1.0) - 1.0 for w in holders.known] + [0.0])
    order = np.lexsort((used, node))
    node, used, workload = node[order], used[order], workload[order]
    of_node = np.flatnonzero(np.diff(node, prepend=-1))
    first = np.union1d(of_node, np.flatnonzero(np.diff(used, prepend=used[:1])))
    each = list(
        zip(
            used[first].tolist(),
            np.diff(first, append=len(node)).tolist(),
            np.add.reduceat(suffered[workload], first).round(9).tolist(),
            np.add.reduceat(caused[workload], first).round(9).tolist(),
            strict=True,
        )
    )
    ends = [*np.searchsorted(first, of_node).tolist(), len(each)]
    number[node[of_node]] = [
        found.setdefault(tuple(each[begin:end]), len(found)) for begin, end in pairwise(ends)
    ]
    return number, [tuple(map(Neighbours._make, there)) for there in found]


class _Holders(NamedTuple):
    """The GPUs of running jobs."""

    job: IntArray
    node: IntArray
    slot: IntArray
    workload: IntArray  # (jobs,) position in ``known``; -1: application not known.
    known: tuple[Workload, ...]


@by_identity
def _holders(running: tuple[RunningJob, ...]) -> _Holders:
    """Cached, because all decisions of a round share one tuple of running jobs."""
    flat: list[tuple[int, int, int]] = []
    known: dict[Workload, int] = {}
    workload = np.full(len(running), -1, dtype=np.int64)
    for number, job in enumerate(running):
        flat += [(number, node, slot) for node, slots in sorted(job.gpus) for slot in slots]
        if job.application is not None:
            gpus = sum(len(slots) for _, slots in job.gpus)
            workload[number] = known.setdefault((job.application, gpus), len(known))
    job_of, node_of, slot_of = np.array(flat, dtype=np.int64).reshape(-1, 3).T
    return _Holders(job_of, node_of, slot_of, workload, tuple(known))


@dataclass(frozen=True)
class TopoOptions(PolicyOptions):
    """Checked options. Both policies accept those that only ``topo-aware-p`` uses."""

    weights: Weights = field(default_factory=Weights)  # a_cc, a_b, a_d, sum 1.
    interference: InterferenceProfile | None = None  # None: interference is not known.
    interference_scope: str = "socket"
    """What jobs share that interfere, one of `SCOPES`."""
    minimal_utility: float | None = None
    """Threshold of a job (``topo-aware-p``), 0..1; None: 0.3 for one GPU, 0.5 for more."""
    patience_s: float = 3600.0  # Time in which a threshold falls to 0, s; inf: it does not fall.
    single_node: bool = False  # All GPUs on one machine.
    anti_collocation: bool = False  # Every GPU on a different machine.
    min_bandwidth_gbps: float = 0.0  # Least link between any two of the job's GPUs, GB/s.
    network_gbps: float = 0.0
    """Bandwidth between two machines, GB/s; 0: not known, below any min_bandwidth_gbps."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _weights(self.weights))
        check_options(self.interference, self.interference_scope)
        utility = self.minimal_utility
        if utility is not None and not 0.0 <= option_number(utility) <= 1.0:
            raise bad_option("minimal_utility", "a number from 0 to 1", utility)
        if not option_number(self.patience_s) > 0.0:
            raise bad_option("patience_s", "a number of more than 0", self.patience_s)
        for name in ("single_node", "anti_collocation"):
            if not isinstance(getattr(self, name), bool):
                raise bad_option(name, "True or False", getattr(self, name))
        for name in ("min_bandwidth_gbps", "network_gbps"):
            if not 0.0 <= option_number(getattr(self, name)) < math.inf:
                raise bad_option(name, "a number of at least 0", getattr(self, name))
        if self.single_node and self.anti_collocation:
            raise ValueError("single_node and anti_collocation exclude each other; give one")
        if self.anti_collocation and self.one_machine:
            raise ValueError(
                "anti_collocation excludes a min_bandwidth_gbps of more than"
                f" network_gbps ({self.network_gbps:g})"
            )

    @property
    def one_machine(self) -> bool:
        """All GPUs on one machine, by ``single_node`` or because the network is too narrow."""
        return self.single_node or self.network_gbps < self.min_bandwidth_gbps

    def threshold(self, gpus: int, waited_s: float = 0.0) -> float:
        """Least utility for a job; it falls linearly to 0 over ``patience_s``."""
        threshold = self.minimal_utility
        if threshold is None:
            threshold = 0.3 if gpus == 1 else 0.5
        return threshold * max(0.0, 1.0 - waited_s / self.patience_s)


def _weights(value: Any) -> Weights:
    if isinstance(value, Weights):
        return value
    try:
        communication, interference, fragmentation = map(float, value)
        return Weights(communication, interference, fragmentation)
    except (TypeError, ValueError, OverflowError):
        wanted = "three numbers of at least 0 with sum 1"
        wanted += " (communication, interference, fragmentation)"
        raise bad_option("weights", wanted, value) from None
