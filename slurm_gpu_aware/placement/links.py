"""The choice inside a cell by links: MAPA's bandwidths, then best fit, then the lowest index.

The best set is found once per kind of node (``link_kinds``) and remembered.

===========  ================================================================================
objective    a set is better if
===========  ================================================================================
``effbw``    its EffBW is larger; among equals, its AggBW
``aggbw``    its AggBW is larger
``preserved``  taking it costs the free GPUs of the cluster less link bandwidth. On one node this
             is the largest PreservedBW (eq. 3); over nodes it is eq. 3 on all free GPUs
===========  ================================================================================

On several nodes every node's part of the job is scored with the job's pattern on that part: the
job is as good as its worst part (``effbw``) or the sum of its parts (the others). Under Slurm's
constraint the index set and the nodes are searched together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.groups import enough_rows, load_of_groups, top_rows
from slurm_gpu_aware.placement.link_kinds import (
    Goal,
    Kinds,
    choice_of,
    gpus_left,
    graph_of,
    kinds_of,
)
from slurm_gpu_aware.placement.links_same import choose_same
from slurm_gpu_aware.placement.masks import popcount
from slurm_gpu_aware.placement.selection import MOST_CONSIDERED, Choice, Considered, choose
from slurm_gpu_aware.topology.bandwidth import preserved_bw
from slurm_gpu_aware.topology.matching import agg_table, eff_table, exact_tables
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of, masks_of_size, slots_of

__all__ = ["choose_by_links", "compared_in_part", "promised_set"]


@dataclass(frozen=True)
class _Best:
    """Best set of one kind of node. Larger values are better, compared in order."""

    values: tuple[float, float]
    mask: int
    sets: int
    ties: int
    told: int = 0
    """On plain nodes the set that the values are those of; ``mask`` is then only a count."""


def choose_by_links(cell: Cell, goal: Goal) -> Choice:
    """Return the cell's best set by links, then best fit, then the lowest index.

    Exact for one node of up to 16 free GPUs. For an uneven split over nodes the counts per node
    are those of :func:`choose.choose`, and the links decide which GPUs of each node.
    """
    if cell.split.uneven:
        return _choose_uneven(cell, goal)
    kinds = kinds_of(cell)
    if cell.split.nodes > 1 and cell.split.same_slots:
        return choose_same(cell, kinds, goal)
    best = [_best_of_kind(cell, kinds, kind, goal) for kind in range(len(kinds.graph))]
    return _choose_rows(cell, kinds, best, goal)


def _best_of_kind(cell: Cell, kinds: Kinds, kind: int, goal: Goal) -> _Best:
    allowed = kinds.allowed[kind]
    size = allowed.bit_count() if cell.supply.request.whole_node else cell.split.per_node
    find = _worst_set if kinds.plain[kind] else _best_set
    return find(kinds.graph[kind], kinds.free[kind], allowed, size, goal)


@lru_cache(maxsize=1 << 16)
def _best_set(graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal) -> _Best:
    """Best ``k`` of the allowed GPUs (a mask) of a node with these free GPUs."""
    if graph.n > MAX_EXACT:
        return _best_set_of_large(graph, free, allowed, k, goal)
    masks, first, second = _scored(graph, free, allowed, k, goal)
    top = first == first.max()
    if second is not None:
        top &= second == second[top].max()
    at = int(top.argmax())
    values = (float(first[at]), float(second[at]) if second is not None else 0.0)
    return _Best(values, int(masks[at]), len(masks), int(top.sum()))


@lru_cache(maxsize=4096)
def _worst_set(graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal) -> _Best:
    """What a plain node promises: Slurm picks the GPUs, so the worst set counts."""
    slots = slots_of(allowed)
    lowest = mask_of(slots[:k])
    if graph.n > MAX_EXACT:
        return _Best(_values(graph, free, slots[:k], goal), lowest, comb(len(slots), k), 1, lowest)
    masks, first, second = _scored(graph, free, allowed, k, goal)
    bottom = first == first.min()
    if second is not None:
        bottom &= second == second[bottom].min()
    at = int(bottom.argmax())
    values = (float(first[at]), float(second[at]) if second is not None else 0.0)
    return _Best(values, lowest, len(masks), len(masks), int(masks[at]))


def promised_set(graph: HardwareGraph, free: int, slots: tuple[int, ...], goal: Goal) -> int:
    """Mask of the worst set that Slurm may pick on a plain node: the one that counted."""
    return _worst_set(graph, free, free, len(slots), goal).told


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


def _best_set_of_large(graph: HardwareGraph, free: int, allowed: int, k: int, goal: Goal) -> _Best:
    """Nodes of more than 16 GPUs: exact if at most 16 are allowed, else grown from each GPU."""
    slots = slots_of(allowed)
    if len(slots) <= MAX_EXACT and goal.objective != "preserved":
        part = graph.subgraph(slots)
        full = (1 << part.n) - 1
        best = _best_set(part, full, full, k, goal)
        return replace(best, mask=mask_of([slots[i] for i in slots_of(best.mask)]))
    grown = {_grown(graph, free, slots, seed, k, goal) for seed in slots}
    scored = [(_values(graph, free, chosen, goal), chosen) for chosen in grown]
    top = max(value for value, _ in scored)
    equal = sorted(chosen for value, chosen in scored if value == top)
    return _Best(top, mask_of(equal[0]), len(scored), len(equal))


def compared_in_part(cell: Cell, choice: Choice, goal: Goal) -> bool:
    """Say whether sets were compared by embeddings that may not be the best ones."""
    if goal.pattern.name != "edges" or goal.objective == "preserved":
        return False
    sizes = {len(slots) for slots in choice.slots if len(slots) <= MAX_EXACT}
    graphs = kinds_of(cell).graph
    return any(not exact_tables(graph, goal.pattern, k) for graph in graphs for k in sizes)


def _grown(
    graph: HardwareGraph, free: int, slots: tuple[int, ...], seed: int, k: int, goal: Goal
) -> tuple[int, ...]:
    """``k`` GPUs, each next one best linked to the chosen (or least to those that stay)."""
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


def _choose_rows(cell: Cell, kinds: Kinds, best: list[_Best], goal: Goal) -> Choice:
    """One node, or several that each give their own best set."""
    count = cell.split.nodes
    considered: tuple[Considered, ...] = ()
    if count == 1 and len(cell.units) == 1:
        return _only_row(cell, best[0], goal, kinds)
    values = np.array([b.values for b in best])
    left, own = gpus_left(cell), popcount(cell.masks).astype(np.int64)
    if count == 1:
        # Sieves instead of a sort: best values, then fewest left on the node, in the domain.
        top = values[:, 0] == values[:, 0].max()
        top &= values[:, 1] == values[top, 1].max()
        rows = np.flatnonzero(top[kinds.of_row])
        for spare in (left, own):
            rows = rows[spare[rows] == spare[rows].min()]
        equal, picked = rows, rows[np.argmin(cell.units[rows])][None]
        considered = _considered(cell, kinds, best, int(picked[0]))
    else:
        of_row = values[kinds.of_row]
        optional = ~np.isin(cell.units, list(cell.supply.request.required))
        order = np.lexsort((cell.units, own, left, -of_row[:, 1], -of_row[:, 0], optional))
        order = _rows_of_best_group(cell, order, of_row, goal)
        last = order[-1]
        alike = (of_row == of_row[last]).all(axis=1) & (left == left[last])
        equal, picked = np.flatnonzero(alike), np.sort(order)
    per_kind = np.bincount(kinds.of_row, minlength=len(best))
    tied = np.bincount(kinds.of_row[equal], minlength=len(best))
    return choice_of(
        cell,
        picked,
        [best[kind].mask for kind in kinds.of_row[picked]],
        sets=sum(int(n) * b.sets for n, b in zip(per_kind, best, strict=True)),
        ties=sum(int(n) * b.ties for n, b in zip(tied, best, strict=True)),
        considered=considered,
        cut=_cut(kinds, goal),
    )


def _only_row(cell: Cell, best: _Best, goal: Goal, kinds: Kinds) -> Choice:
    """One node, and only one that can be it: a machine on its own."""
    considered = Considered(cell.units.item(0), slots_of(best.mask), best.values[0])
    return choice_of(
        cell,
        np.zeros(1, dtype=np.int64),
        [best.mask],
        sets=best.sets,
        ties=best.ties,
        considered=(considered,),
        cut=_cut(kinds, goal),
    )


def _cut(kinds: Kinds, goal: Goal) -> str | None:
    """What was not compared on nodes that are too large for tables."""
    for graph, allowed in zip(kinds.graph, kinds.allowed, strict=True):
        many = goal.objective == "preserved" or allowed.bit_count() > MAX_EXACT
        if graph.n > MAX_EXACT and many and not graph.is_uniform:
            return "on nodes with more than 16 GPUs sets grown from each GPU, not all compared"
    return None


def _considered(cell: Cell, kinds: Kinds, best: list[_Best], picked: int) -> tuple[Considered, ...]:
    """The picked row's set, then the best set of a row of each of the best other kinds."""
    own = int(kinds.of_row[picked])
    others = sorted((k for k in range(len(best)) if k != own), key=lambda k: best[k].values)
    kind_order = others[::-1][: MOST_CONSIDERED - 1]
    rows = [picked, *(int((kinds.of_row == kind).argmax()) for kind in kind_order)]
    return tuple(
        Considered(
            int(cell.units[row]),
            slots_of(best[int(kinds.of_row[row])].mask),
            best[int(kinds.of_row[row])].values[0],
        )
        for row in rows
    )


def _rows_of_best_group(cell: Cell, order: IntArray, values: FloatArray, goal: Goal) -> IntArray:
    """Of each group the best rows; of the groups the one whose rows are best together."""
    numbers = enough_rows(cell)
    top = top_rows(cell.group, order, numbers, cell.split.nodes)
    if len(numbers) == 1:
        return np.asarray(top[0])
    first, second = values[top, 0], values[top, 1]
    if goal.objective == "effbw":
        worst = first.min(axis=1)
        second = np.where(first == worst[:, None], second, np.inf).min(axis=1)
        first = worst
    else:
        first, second = first.sum(axis=1), np.zeros(len(numbers))
    left = gpus_left(cell)[top].sum(axis=1)
    keys = (numbers, load_of_groups(cell)[numbers], left, -second, -first)
    return np.asarray(top[int(np.lexsort(keys)[0])])


def _choose_uneven(cell: Cell, goal: Goal) -> Choice:
    """Counts per node as packing gives them; on every node the best set of that size."""
    counts = choose(cell)
    row_of = {int(node): row for row, node in enumerate(cell.units)}
    chosen: list[tuple[int, ...]] = []
    sets = ties = 1
    for node, slots in zip(counts.nodes, counts.slots, strict=True):
        free, allowed = int(cell.supply.free[node]), int(cell.masks[row_of[node]])
        if not cell.supply.cluster.indexed[node]:
            chosen.append(slots)
            continue
        graph = graph_of(cell.supply.cluster, node)
        found = _best_set(graph, free, allowed, len(slots), goal)
        chosen.append(slots_of(found.mask))
        sets, ties = sets * found.sets, ties * found.ties
    return Choice(counts.nodes, tuple(chosen), counts.total, counts.candidates, sets, ties)
