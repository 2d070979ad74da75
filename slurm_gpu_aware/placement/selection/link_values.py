"""Best and worst sets of one kind of node by links, cached.

===========  ================================================================================
objective    a set is better if
===========  ================================================================================
``effbw``    its EffBW is larger; among equals, its AggBW
``aggbw``    its AggBW is larger
``preserved``  it takes less link bandwidth from the free GPUs. On one node this is the largest
             PreservedBW (eq. 3); over nodes it is eq. 3 on all free GPUs
===========  ================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.selection.link_kinds import Goal
from slurm_gpu_aware.topology.bandwidth import preserved_bw
from slurm_gpu_aware.topology.matching import agg_table, eff_table
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of, masks_of_size, slots_of

__all__ = ["BestSet", "best_set", "promised_set", "worst_set"]


@dataclass(frozen=True)
class BestSet:
    """Best or worst set of one kind of node. Larger values are better, compared in order."""

    values: tuple[float, float]
    mask: int
    sets: int
    ties: int
    promised: int = 0
    """On plain nodes the set with these values; ``mask`` is then only a count."""


@lru_cache(maxsize=1 << 16)
def best_set(graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal) -> BestSet:
    """Best ``k`` of the allowed GPUs (a mask) of a node with these free GPUs."""
    if graph.n > MAX_EXACT:
        return _best_set_of_large(graph, free, allowed, k, goal)
    masks, first, second = _scored(graph, free, allowed, k, goal)
    top = first == first.max()
    if second is not None:
        top &= second == second[top].max()
    at = int(top.argmax())
    values = (float(first[at]), float(second[at]) if second is not None else 0.0)
    return BestSet(values, int(masks[at]), len(masks), int(top.sum()))


@lru_cache(maxsize=4096)
def worst_set(graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal) -> BestSet:
    """Worst ``k`` of the allowed GPUs, which count on a plain node, where Slurm chooses."""
    slots = slots_of(allowed)
    lowest = mask_of(slots[:k])
    if graph.n > MAX_EXACT:
        return BestSet(
            _values(graph, free, slots[:k], goal), lowest, comb(len(slots), k), 1, lowest
        )
    masks, first, second = _scored(graph, free, allowed, k, goal)
    bottom = first == first.min()
    if second is not None:
        bottom &= second == second[bottom].min()
    at = int(bottom.argmax())
    values = (float(first[at]), float(second[at]) if second is not None else 0.0)
    return BestSet(values, lowest, len(masks), len(masks), int(masks[at]))


def promised_set(graph: HardwareGraph, free: int, slots: tuple[int, ...], goal: Goal) -> int:
    """Mask of the worst set that Slurm may choose on a plain node."""
    return worst_set(graph, free, free, len(slots), goal).promised


def _scored(
    graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal
) -> tuple[IntArray, FloatArray, FloatArray | None]:
    """Masks of the candidate sets in tie order and their values (larger is better)."""
    masks = masks_of_size(graph.n, k)
    inside: npt.NDArray[np.bool_] | slice = slice(None)
    if allowed != (1 << graph.n) - 1:
        inside = (masks & ~allowed) == 0
    masks = masks[inside]
    if goal.objective == "preserved":
        return masks, preserved_bw(graph, free, masks) - float(preserved_bw(graph, free, 0)), None
    agg = agg_table(graph, goal.pattern, k)[inside]
    if goal.objective == "aggbw":
        return masks, agg, None
    return masks, eff_table(graph, goal.pattern, k, goal.model)[inside], agg


def _values(
    graph: HardwareGraph, free: int, slots: tuple[int, ...], goal: Goal
) -> tuple[float, float]:
    """Values of one set on a machine that is too large for tables."""
    if goal.objective == "preserved":
        mask = mask_of(slots)
        return float(preserved_bw(graph, free, mask) - preserved_bw(graph, free, 0)), 0.0
    if len(slots) > MAX_EXACT:
        inside = graph.gbps[np.ix_(slots, slots)]
        return float(inside[np.triu_indices(len(slots), 1)].min()), float(inside.sum() / 2)
    part = graph.subgraph(slots)
    agg = float(agg_table(part, goal.pattern, part.n)[0])
    if goal.objective == "aggbw":
        return agg, 0.0
    return float(eff_table(part, goal.pattern, part.n, goal.model)[0]), agg


def _best_set_of_large(
    graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal
) -> BestSet:
    """Best set on more than 16 GPUs: exact if at most 16 are allowed, else grown from each."""
    slots = slots_of(allowed)
    if len(slots) <= MAX_EXACT and goal.objective != "preserved":
        part = graph.subgraph(slots)
        full = (1 << part.n) - 1
        best = best_set(part, full, full, k, goal)
        return replace(best, mask=mask_of([slots[i] for i in slots_of(best.mask)]))
    grown = {_grown(graph, free, slots, seed, k, goal) for seed in slots}
    scored = [(_values(graph, free, chosen, goal), chosen) for chosen in grown]
    top = max(value for value, _ in scored)
    equal = sorted(chosen for value, chosen in scored if value == top)
    return BestSet(top, mask_of(equal[0]), len(scored), len(equal))


def _grown(
    graph: HardwareGraph, free: int, slots: tuple[int, ...], seed: int, k: int, goal: Goal
) -> tuple[int, ...]:
    """``k`` GPUs; each next one has the best links to the chosen (or the least to the others)."""
    chosen = [seed]
    others = [i for i in slots_of(free) if i < graph.n]
    while len(chosen) < k:
        inside = graph.gbps[:, chosen].sum(axis=1)
        gain = inside
        if goal.objective == "preserved":
            gain = 2 * inside - graph.gbps[:, others].sum(axis=1)
        rest = [s for s in slots if s not in chosen]
        chosen.append(max(rest, key=lambda s: (gain[s], -s)))
    return tuple(sorted(chosen))
