"""The search of ``topo-aware``: recursive bipartition from the network down to GPUs.

Above the machine the physical graph is a tree of levels with known cuts. A job on one machine goes
at each level to the half with the machine of the highest utility, and so to that machine. A job on
several machines goes to the tightest group that holds it and fills as few inner groups as possible.
Inside a machine ``bipartition`` splits the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.cells import Cell, first_cell, supports_of
from slurm_gpu_aware.placement.drb.bipartition import linked_enough, narrow_pairs
from slurm_gpu_aware.placement.drb.machines import Machines, kind_mask, scale_for
from slurm_gpu_aware.placement.drb.options import TopoOptions
from slurm_gpu_aware.placement.drb.uneven import uneven_rows
from slurm_gpu_aware.placement.drb.utility import Terms
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.index_sets import words_of_cut
from slurm_gpu_aware.placement.level_views import LevelView, anywhere, level_views
from slurm_gpu_aware.placement.score_table import flat_table
from slurm_gpu_aware.placement.selection.groups import fullest, groups_of
from slurm_gpu_aware.placement.shapes import Split, splits
from slurm_gpu_aware.topology.distances import path_sum

__all__ = ["SearchResult", "search"]

_MOST_SETS = 32  # index sets compared for a job on several nodes, nearest GPUs first
_MOST_ALTERNATIVES = 3
_SIGNLESS = (1 << 63) - 1  # index sets are signed and never contain slot 63


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best set, and its alternatives."""

    machines: Machines
    rows: IntArray
    masks: tuple[int, ...]
    terms: Terms
    ties: int
    sets: int
    """Sets compared: one per kind of machine, or one per index set and group."""
    alternatives: tuple[tuple[IntArray, tuple[int, ...], Terms], ...] = ()
    """The next best sets, (rows, masks, terms)."""
    cut: str | None = None
    """Words for the account on sets that were not compared."""

    @property
    def key(self) -> tuple[float, int, int]:
        """Cost, GPUs left on its machines, first machine."""
        left = int(self.machines.left[self.rows].sum())
        return self.terms.cost, left, int(self.machines.cell.units[self.rows[0]])


def search(request: Request, cluster: Cluster, options: TopoOptions) -> SearchResult | None:
    """Return the set of the highest utility that the search finds, or None if nothing fits.

    Order: fewest machines, tightest network level, utility, fewest GPUs left (best fit), lowest
    index.
    """
    choices = _choices(request, cluster, options)
    if not choices:
        return None
    supply = Supply(request, cluster, flat_table(cluster))
    scale = scale_for(request, cluster, choices, options)
    for split in choices:
        for level in _levels(cluster, split):
            cell = first_cell(supply, (level,), (split,))
            if cell is None:
                continue
            found = _inside(Machines(cell, options, scale), options)
            if found is not None:
                return found
    return None


def _choices(request: Request, cluster: Cluster, options: TopoOptions) -> list[Split]:
    """The splits that the options allow."""
    choices = splits(request, cluster)
    if options.one_machine:
        return [s for s in choices if s.nodes == 1]
    if not options.anti_collocation:
        return list(choices)
    alone = [s for s in choices if not s.uneven and s.per_node == 1]
    most = request.max_nodes if request.max_nodes is not None else request.gpus
    if any(s.uneven for s in choices) and most >= request.gpus:
        alone.append(Split(request.gpus, 1))
    return alone


def _levels(cluster: Cluster, split: Split) -> list[LevelView]:
    """Levels to try, tightest first, with equal penalties."""
    whole = anywhere(cluster)
    if split.nodes == 1:
        return [LevelView("node", 1.0, whole.group, 1, None, one_node=True)]
    known = [replace(v, penalty=1.0) for v in level_views(cluster) if not v.one_node]
    return [*known, LevelView("network", 1.0, whole.group, 1, None, one_node=False)]


def _inside(machines: Machines, options: TopoOptions) -> SearchResult | None:
    split = machines.cell.split
    if split.uneven or split.same_slots:
        return _several(machines, options, [])
    kinds = range(len(machines.kinds))
    masks = [kind_mask(machines, kind, split.per_node, options) for kind in kinds]
    if split.nodes == 1:
        return _one(machines, masks)
    return _several(machines, options, masks)


def _one(machines: Machines, masks: Sequence[int | None]) -> SearchResult | None:
    """One machine: the highest utility, then best fit, then the lowest index."""
    costs = machines.row_costs(masks)
    if not np.isfinite(costs).any():
        return None
    order = np.lexsort((machines.left, costs))
    best = int(order[0])
    same = (costs == costs[best]) & (machines.left == machines.left[best])

    def entry(row: int) -> tuple[IntArray, tuple[int, ...], Terms]:
        rows, mask = np.array([row], dtype=np.int64), masks[int(machines.of_row[row])]
        return rows, (mask or 0,), machines.terms(rows, (mask or 0,))

    others = _next_best(machines, costs, order)
    rows, chosen, terms = entry(best)
    return SearchResult(
        machines,
        rows,
        chosen,
        terms,
        ties=int(np.count_nonzero(same)),
        sets=sum(mask is not None for mask in masks),
        alternatives=tuple(entry(row) for row in others),
    )


def _next_best(machines: Machines, costs: FloatArray, order: IntArray) -> list[int]:
    """The cheapest rows after the first that differ from those before them in kind or cost."""
    others: list[int] = []
    last = int(order[0])
    rest = order
    while len(others) < _MOST_ALTERNATIVES:
        rest = rest[(machines.of_row[rest] != machines.of_row[last]) | (costs[rest] != costs[last])]
        if not len(rest) or not np.isfinite(costs[rest[0]]):
            break
        last = int(rest[0])
        others.append(last)
    return others


def _several(
    machines: Machines, options: TopoOptions, masks: Sequence[int | None]
) -> SearchResult | None:
    """Several machines, in the fullest groups that hold the job.

    ``masks``: mask of each kind of machine, if machines may give different slots.
    """
    cell, cuts = machines.cell, list[str | None]()
    costs = machines.row_costs(masks) if masks else np.zeros(0)
    sets_of = _index_sets(machines, options.min_bandwidth_gbps) if cell.split.same_slots else {}
    if cell.split.uneven:
        fine = groups_of(cell)
    elif masks:
        able = np.bincount(cell.group[np.isfinite(costs)], minlength=cell.level.groups)
        fine = np.flatnonzero(able >= cell.split.nodes)
    else:
        fine = np.array(sorted(sets_of), dtype=np.int64)
        cuts.append(words_of_cut(cell.supply, sets_of.values()))
    compared = fullest(cell, fine).tolist()
    if len(compared) < len(fine):
        cuts.append(f"the {len(compared)} fullest of {len(fine)} groups compared")
    most = max((len(sets_of[number]) for number in compared if sets_of), default=0)
    if most > _MOST_SETS:
        cuts.append(f"the {_MOST_SETS} nearest of {most} index sets compared")
    found: list[tuple[IntArray, tuple[int, ...]] | None] = []
    for number in compared:
        inside = np.flatnonzero(cell.group == number)
        if cell.split.uneven:
            found.append(uneven_rows(machines, options, inside))
        elif masks:
            found.append(_picked(machines, inside, masks, costs))
        else:
            for mask in _nearest(machines, inside, sets_of[number]):
                same = _on_kinds(machines, mask, options.min_bandwidth_gbps)
                found.append(_picked(machines, inside, same, machines.row_costs(same)))
    return _best(
        [
            SearchResult(machines, *each, machines.terms(*each), ties=1, sets=0)
            for each in found
            if each is not None
        ],
        "; ".join(words for words in cuts if words) or None,
    )


def _picked(
    machines: Machines, inside: IntArray, masks: Sequence[int | None], costs: FloatArray
) -> tuple[IntArray, tuple[int, ...]] | None:
    """The machines of the rows ``inside``, and the mask of each."""
    able = inside[np.isfinite(costs[inside])]
    picked = _pick(machines, able, costs, machines.cell.split.nodes)
    if picked is None:
        return None
    return picked, tuple(masks[kind] or 0 for kind in machines.of_row[picked].tolist())


def _index_sets(machines: Machines, need: float) -> dict[int, IntArray]:
    """Group -> index sets of enough machines, with links of at least ``need`` (GB/s)."""
    sets_of = {number: sets for number, sets, _ in supports_of(machines.cell)}
    if need > 0.0:
        linked = {number: _linked_sets(machines, number, s, need) for number, s in sets_of.items()}
        sets_of = {number: sets for number, sets in linked.items() if len(sets)}
    return sets_of


def _on_kinds(machines: Machines, mask: int, need: float) -> list[int | None]:
    """The mask for each kind that has it with links of at least ``need`` (GB/s); else None."""
    return [
        mask
        if mask & ~kind.allowed == 0 and (need <= 0.0 or linked_enough(kind.graph, mask, need))
        else None
        for kind in machines.kinds
    ]


def _linked_sets(machines: Machines, number: int, sets: IntArray, need: float) -> IntArray:
    """The index sets that enough machines of a group have with wide enough links."""
    cell = machines.cell
    rows = cell.group == number
    kinds = np.bincount(machines.of_row[rows], minlength=len(machines.kinds))
    required = machines.of_row[rows & np.isin(cell.units, list(cell.supply.request.required))]
    counts, fine = np.zeros(len(sets), dtype=np.int64), np.ones(len(sets), dtype=np.bool_)
    for kind in np.flatnonzero(kinds).tolist():
        machine = machines.kinds[kind]
        able = sets & ~np.int64(machine.allowed & _SIGNLESS) == 0
        for pair in narrow_pairs(machine.graph, need):
            able &= sets & pair != pair
        counts += able * kinds[kind]
        if kind in required:
            fine &= able
    return sets[fine & (counts >= cell.split.nodes)]


def _nearest(machines: Machines, rows: IntArray, sets: IntArray) -> list[int]:
    """The index sets with the shortest paths on the most common kind of machine."""
    if len(sets) <= _MOST_SETS:
        return [int(mask) for mask in sets.tolist()]
    common = int(np.bincount(machines.of_row[rows]).argmax())
    graph = machines.kinds[common].graph
    known = (1 << graph.n) - 1
    order = sorted(sets.tolist(), key=lambda m: path_sum(graph, m & known))
    return order[:_MOST_SETS]


def _pick(machines: Machines, rows: IntArray, costs: FloatArray, count: int) -> IntArray | None:
    """``count`` of the rows, ascending: required ones, then the cheapest of as few network groups
    as possible, on ties the fullest and the lowest index. None if there are too few."""
    cell = machines.cell
    required = cell.supply.request.required
    must = rows[np.isin(cell.units[rows], list(required))]
    if len(must) < len(required) or len(rows) < count:
        return None
    rest = rows[~np.isin(rows, must)]
    order = rest[np.lexsort((rest, machines.left[rest], costs[rest]))]
    picked = [*must.tolist()]
    levels = list(machines.idle.network.group)
    picked += _fill(cell, order, count - len(picked), levels[:-1], picked)
    return np.array(sorted(picked), dtype=np.int64)


def _fill(
    cell: Cell, order: IntArray, count: int, levels: list[IntArray], picked: Sequence[int]
) -> list[int]:
    """``count`` of ``order`` from as few groups of the outermost level as possible.

    Groups with picked rows come first, then the smallest group that holds the rest, else the
    largest.
    """
    if count <= 0 or not levels:
        return [int(row) for row in order[: max(count, 0)]]
    number = levels[-1][cell.units[order]]
    begun = set(levels[-1][cell.units[list(picked)]].tolist()) if picked else set()
    chosen: list[int] = []
    groups = {int(g): order[number == g] for g in dict.fromkeys(number.tolist()) if g >= 0}
    groups |= {-2 - int(r): np.array([r]) for r in order[number < 0]}
    while count > 0:
        best = min(groups, key=lambda g: (g not in begun, *_size_rank(len(groups[g]), count)))
        rows = groups.pop(best)
        taken = _fill(cell, rows, min(count, len(rows)), levels[:-1], [*picked, *chosen])
        chosen += taken
        count -= len(taken)
    return chosen


def _size_rank(size: int, count: int) -> tuple[bool, int]:
    """Sort key: the smallest group that is large enough, else the largest."""
    return (False, size) if size >= count else (True, -size)


def _best(found: list[SearchResult], cut: str | None) -> SearchResult | None:
    if not found:
        return None
    ordered = sorted(found, key=lambda f: f.key)
    best = ordered[0]
    return replace(
        best,
        ties=sum(f.key[:2] == best.key[:2] for f in ordered),
        sets=len(ordered),
        alternatives=tuple((f.rows, f.masks, f.terms) for f in ordered[1 : _MOST_ALTERNATIVES + 1]),
        cut=cut,
    )
