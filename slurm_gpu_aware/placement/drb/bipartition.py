"""Dynamic recursive bipartition of a machine (Amaral et al., SC'17, algorithms 2 and 3).

Fiduccia-Mattheyses splits the physical graph in two, the halves get the job's tasks by utility, and
each half is split in turn, down to single GPUs. The tasks of a job are equal, so only their number
in each half matters: all counts are compared by the utility of the resulting set. (Task by task, as
printed, the first task of a pair fills a half-used socket and the second goes to the other socket,
even if an idle socket has room for both. The text of algorithm 3, "if P1 gives better utility ...
added to A0", is a misprint of A1.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.drb.fm import cut_weight, fm_bipartition
from slurm_gpu_aware.placement.drb.utility import Scale, Weights, free_shares
from slurm_gpu_aware.topology.distances import distances, path_sum
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of, masks_of_size, slots_of

__all__ = [
    "Machine",
    "best_set",
    "halves",
    "linked_enough",
    "machine_cost",
    "narrow_pairs",
    "worst_set",
]


@dataclass(frozen=True)
class Machine:
    """One machine for a job; GPUs are masks. Equal machines are equal values."""

    graph: HardwareGraph
    exists: int
    free: int
    allowed: int
    """Free GPUs that the job may have."""


def machine_cost(machine: Machine, chosen: int, weights: Weights, scale: Scale) -> float:
    """Cost of sets of equal size on the machine: eq. 1 except for a constant.

    Interference is the same for all of them. t counts from 0, so that parts of a job compare.
    """
    shares, sockets = free_shares(machine.graph, machine.exists, machine.free, chosen)
    t = path_sum(machine.graph, chosen) + scale.t_best
    return float(scale.cost(weights, float(t), 1.0, shares / max(sockets, 1)))


@lru_cache(maxsize=4096)
def halves(graph: HardwareGraph, gpus: int) -> tuple[int, int]:
    """Split the GPUs of a mask in two along the least cut; the half with the lowest GPU first.

    An edge weighs 1 / distance, so near GPUs stay together. The least cut relative to the product
    of the sizes wins (ratio cut), because sockets may differ in size; then the more even cut.
    """
    slots = list(slots_of(gpus))
    length = distances(graph)[np.ix_(slots, slots)].astype(np.float64)
    near = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    n = len(slots)
    best: tuple[float, int] | None = None
    for size in sorted(range(1, n), key=lambda s: (abs(n - 2 * s), s)):
        side = _split(near, size)
        ratio = round(cut_weight(near, side) / (size * (n - size)), 12)
        if best is None or ratio < best[0]:
            best = ratio, mask_of([s for s, first in zip(slots, side, strict=True) if first])
    if best is None:
        raise ValueError("a single GPU has no halves")
    return best[1], gpus ^ best[1]


def _split(near: FloatArray, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    off_diagonal = near[~np.eye(len(near), dtype=np.bool_)]
    if off_diagonal.min() == off_diagonal.max():  # every cut of this size is equal
        return np.arange(len(near)) < size
    return fm_bipartition(near, (size, size))


@lru_cache(maxsize=1 << 10)
def narrow_pairs(graph: HardwareGraph, gbps: float) -> tuple[int, ...]:
    """Pairs of GPUs, as masks, with a link of less than ``gbps`` (GB/s)."""
    first, second = np.nonzero(np.triu(graph.gbps[:63, :63] < gbps, 1))  # signed masks
    return tuple(1 << a | 1 << b for a, b in zip(first.tolist(), second.tolist(), strict=True))


@lru_cache(maxsize=1 << 14)
def linked_enough(graph: HardwareGraph, gpus: int, gbps: float) -> bool:
    """Say whether every pair of the GPUs has a link of at least ``gbps`` (GB/s)."""
    slots = list(slots_of(gpus))
    links = graph.gbps[np.ix_(slots, slots)]
    return bool((links[~np.eye(len(slots), dtype=np.bool_)] >= gbps).all())


@lru_cache(maxsize=1 << 14)
def best_set(
    machine: Machine, k: int, weights: Weights, scale: Scale, min_gbps: float = 0.0
) -> int | None:
    """Mask of the ``k`` GPUs that recursive bipartition gives a job.

    Parameters
    ----------
    min_gbps : least link of every pair, GB/s. If bipartition finds no such set on a machine of up
        to 16 GPUs, all sets are tried.

    Returns
    -------
    The mask; None if the machine has no ``k`` GPUs for the job.

    Notes
    -----
    A heuristic: the best choice inside each half may not be the best for the whole. It is exact if
    distances depend only on the level (all GPUs of one half have the same distance to the other
    half) and sockets have two GPUs. On ties the lowest slots win.
    """
    if machine.allowed.bit_count() < k:
        return None

    def linked(mask: int) -> bool:
        return min_gbps <= 0.0 or linked_enough(machine.graph, mask, min_gbps)

    def order(mask: int) -> tuple[float, tuple[int, ...]]:
        return machine_cost(machine, mask, weights, scale), slots_of(mask)

    @cache
    def best(region: int, count: int) -> int | None:
        """Best ``count`` GPUs of a region; None if there are none."""
        there = machine.allowed & region
        if count == 0 or there.bit_count() < count:
            return None if count else 0
        if there.bit_count() == count:
            return there if linked(there) else None
        first, second = halves(machine.graph, region)
        candidates: list[int] = []
        for inside in range(count + 1):
            a, b = best(first, count - inside), best(second, inside)
            if a is not None and b is not None and linked(a | b):
                candidates.append(a | b)
        return min(candidates, key=order, default=None)

    found = best(machine.exists, k)
    if found is not None or min_gbps <= 0.0 or machine.graph.n > MAX_EXACT:
        return found
    every: list[int] = masks_of_size(machine.graph.n, k).tolist()
    fine = [mask for mask in every if not mask & ~machine.allowed and linked(mask)]
    return min(fine, key=lambda m: machine_cost(machine, m, weights, scale), default=None)


@lru_cache(maxsize=1 << 12)
def worst_set(machine: Machine, k: int, weights: Weights, scale: Scale) -> int:
    """The costliest ``k`` of the allowed GPUs, for nodes where Slurm chooses the GPUs.

    Compares all sets up to 16 slots; above, the lowest ``k`` count.
    """
    slots = slots_of(machine.allowed)
    if machine.graph.n > MAX_EXACT:
        return mask_of(slots[:k])
    sets: list[int] = masks_of_size(machine.graph.n, k).tolist()
    masks = [m for m in sets if not m & ~machine.allowed]
    return max(masks, default=0, key=lambda m: machine_cost(machine, m, weights, scale))
