"""The search of ``topo-aware``: recursive bipartition from the network down to GPUs.

Above the machine the physical graph is a tree of levels with known cuts. A job on one machine goes
at each level to the half with the machine of the highest utility, and so to that machine. A job on
several machines goes to the tightest group that holds it and fills as few inner groups as possible.
Inside a machine ``bipartition`` splits the graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.cells import Cell, first_cell, supports_of
from slurm_gpu_aware.placement.drb.bipartition import linked_enough, narrow_pairs
from slurm_gpu_aware.placement.drb.machines import Machines, PlacedSet, scale_for
from slurm_gpu_aware.placement.drb.utility import TopoOptions
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.index_sets import words_of_cut
from slurm_gpu_aware.placement.level_views import LevelView, flat_table, level_views, two_levels
from slurm_gpu_aware.placement.selection.base import groups_of, load_of_groups
from slurm_gpu_aware.placement.shapes import Split, splits
from slurm_gpu_aware.topology.locality import path_sum

_MOST_SETS = 32  # index sets compared for a job on several nodes, nearest GPUs first
_MOST_GROUPS = 32  # groups that are compared, the fullest ones
_MOST_ALTERNATIVES = 3
_SIGNLESS = (1 << 63) - 1  # index sets are signed and never contain slot 63


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best set, and its alternatives."""

    machines: Machines
    best: PlacedSet
    alternatives: list[PlacedSet]  # The next best sets.
    ties: int
    sets: int  # Sets compared: one per kind of machine, or one per index set and group.
    cut: str | None = None  # Words for the account on sets that were not compared.


def search(request: Request, cluster: Cluster, options: TopoOptions) -> SearchResult | None:
    """Return the best set that the search finds, or None if nothing fits.

    Order: fewest machines, tightest network level, utility, best fit, lowest index.
    """
    choices = _choices(request, cluster, options)
    if not choices:
        return None
    supply = Supply(request, cluster, flat_table(cluster))
    scale = scale_for(request, cluster, choices, options)
    cells = (
        first_cell(supply, (level,), (split,))
        for split in choices
        for level in _levels(cluster, split)
    )
    found = (_inside(Machines(cell, options, scale)) for cell in cells if cell is not None)
    return next(filter(None, found), None)


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
    node, network = two_levels(cluster)
    if split.nodes == 1:
        return [node]
    return [*(replace(v, penalty=1.0) for v in level_views(cluster) if not v.one_node), network]


def _inside(machines: Machines) -> SearchResult | None:
    """The best set of a cell."""
    split = machines.cell.split
    masks = [] if split.uneven or split.same_slots else machines.masks(split.per_node)
    return _one(machines, masks) if split.nodes == 1 else _several(machines, masks)


def _one(machines: Machines, masks: Sequence[int | None]) -> SearchResult | None:
    """One machine: the highest utility, then best fit, then the lowest index."""
    costs = machines.row_costs(masks)
    order = np.lexsort((machines.left, costs))
    rest = order[np.isfinite(costs[order])]
    if not len(rest):
        return None
    best = rest[0]
    ties = np.count_nonzero((costs == costs[best]) & (machines.left == machines.left[best]))
    found: list[PlacedSet] = []
    while len(rest) and len(found) <= _MOST_ALTERNATIVES:
        row = rest[0]
        found.append(machines.placed(rest[:1], [masks[machines.of_row[row]] or 0]))
        # The next one differs in kind or cost.
        rest = rest[(machines.of_row[rest] != machines.of_row[row]) | (costs[rest] != costs[row])]
    compared = sum(mask is not None for mask in masks)
    return SearchResult(machines, found[0], found[1:], int(ties), compared)


def _several(machines: Machines, masks: Sequence[int | None]) -> SearchResult | None:
    """Several machines; ``masks``: mask of each kind, if machines may give different slots."""
    cell, cuts = machines.cell, list[str | None]()
    costs = machines.row_costs(masks) if masks else np.zeros(0)
    sets_of = _index_sets(machines) if cell.split.same_slots else {}
    if cell.split.uneven:
        fine = groups_of(cell)
    elif masks:
        able = np.bincount(cell.group[np.isfinite(costs)], minlength=cell.level.groups)
        fine = np.flatnonzero(able >= cell.split.nodes)
    else:
        fine = np.array(sorted(sets_of), dtype=np.int64)
        cuts.append(words_of_cut(cell.supply, sets_of.values()))
    compared = fine[np.lexsort((fine, load_of_groups(cell)[fine]))][:_MOST_GROUPS].tolist()
    if len(compared) < len(fine):
        cuts.append(f"the {len(compared)} fullest of {len(fine)} groups compared")
    most = max((len(sets_of[number]) for number in compared if sets_of), default=0)
    if most > _MOST_SETS:
        cuts.append(f"the {_MOST_SETS} nearest of {most} index sets compared")
    found: list[PlacedSet | None] = []
    for number in compared:
        inside = np.flatnonzero(cell.group == number)
        if cell.split.uneven:
            found.append(_uneven_set(machines, inside))
        elif masks:
            found.append(_picked(machines, inside, masks, costs))
        else:
            for mask in _nearest(machines, inside, sets_of[number]):
                same = _on_kinds(machines, mask)
                found.append(_picked(machines, inside, same, machines.row_costs(same)))

    def key(one: PlacedSet) -> tuple[float, int, int]:
        """Cost, GPUs left on its machines, first machine."""
        left = int(machines.left[one.rows].sum())
        return one.terms.cost, left, cell.units.item(one.rows[0])

    ordered = sorted((one for one in found if one is not None), key=key)
    if not ordered:
        return None
    ties = sum(key(one)[:2] == key(ordered[0])[:2] for one in ordered)
    others = ordered[1 : _MOST_ALTERNATIVES + 1]
    cut = "; ".join(words for words in cuts if words) or None
    return SearchResult(machines, ordered[0], others, ties, len(ordered), cut)


def _picked(
    machines: Machines, inside: IntArray, masks: Sequence[int | None], costs: FloatArray
) -> PlacedSet | None:
    """The best of the rows ``inside``, with the mask of each."""
    able = inside[np.isfinite(costs[inside])]
    rows = _pick(machines, able, costs, machines.cell.split.nodes)
    if rows is None:
        return None
    return machines.placed(rows, [masks[kind] or 0 for kind in machines.of_row[rows].tolist()])


def _index_sets(machines: Machines) -> dict[int, IntArray]:
    """Group -> index sets of enough machines with wide enough links."""
    sets_of = supports_of(machines.cell)
    if machines.need > 0.0:
        linked = {number: _linked_sets(machines, number, s) for number, s in sets_of.items()}
        sets_of = {number: sets for number, sets in linked.items() if len(sets)}
    return sets_of


def _on_kinds(machines: Machines, mask: int) -> list[int | None]:
    """The mask for each kind that has it with wide enough links; else None."""
    need = machines.need
    return [
        mask
        if mask & ~kind.allowed == 0 and (need <= 0.0 or linked_enough(kind.graph, mask, need))
        else None
        for kind in machines.kinds
    ]


def _linked_sets(machines: Machines, number: int, sets: IntArray) -> IntArray:
    """The index sets that enough machines of a group have with wide enough links."""
    cell = machines.cell
    rows = cell.group == number
    kinds = np.bincount(machines.of_row[rows], minlength=len(machines.kinds))
    required = machines.of_row[rows & np.isin(cell.units, list(cell.supply.request.nodes.required))]
    counts, fine = np.zeros(len(sets), dtype=np.int64), np.ones(len(sets), dtype=np.bool_)
    for kind in np.flatnonzero(kinds).tolist():
        machine = machines.kinds[kind]
        able = sets & ~np.int64(machine.allowed & _SIGNLESS) == 0
        for pair in narrow_pairs(machine.graph, machines.need):
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
    required = cell.supply.request.nodes.required
    needed = np.isin(cell.units[rows], list(required))
    must, rest = rows[needed].tolist(), rows[~needed]
    if len(must) < len(required) or len(rows) < count:
        return None
    order = rest[np.lexsort((rest, machines.left[rest], costs[rest]))]
    levels = machines.network.group[:-1]
    picked = must + _fill(cell, order, count - len(must), levels, must)
    return np.array(sorted(picked), dtype=np.int64)


def _fill(
    cell: Cell, order: IntArray, count: int, levels: Sequence[IntArray], picked: list[int]
) -> list[int]:
    """``count`` of ``order`` from as few groups of the outermost level as possible."""
    if count <= 0 or not levels:
        return [int(row) for row in order[: max(count, 0)]]
    number = levels[-1][cell.units[order]]
    begun = set(levels[-1][cell.units[picked]].tolist()) if picked else set()
    chosen: list[int] = []
    groups = {int(g): order[number == g] for g in dict.fromkeys(number.tolist()) if g >= 0}
    groups |= {-2 - int(r): np.array([r]) for r in order[number < 0]}

    def rank(group: int) -> tuple[bool, bool, int]:
        """With picked rows first, then the smallest that holds the rest, else the largest."""
        size, left = len(groups[group]), count - len(chosen)
        return group not in begun, size < left, size if size >= left else -size

    while len(chosen) < count:
        rows = groups.pop(min(groups, key=rank))
        wanted = min(count - len(chosen), len(rows))
        chosen += _fill(cell, rows, wanted, levels[:-1], [*picked, *chosen])
    return chosen


def _uneven_set(machines: Machines, rows: IntArray) -> PlacedSet | None:
    """A set of some of ``rows``, with any number of GPUs of each; None if there is none.

    Required nodes come first, then the machine that can give the most, of several the cheapest.
    """
    cell = machines.cell
    request = cell.supply.request
    capacity = cell.supply.capacity(cell.units, cell.masks)
    required = [int(row) for row in rows[np.isin(cell.units[rows], list(request.nodes.required))]]
    fewest = request.fewest_nodes
    rest = rows[(capacity[rows] > 0) & ~np.isin(rows, required)]

    @cache
    def offers(k: int) -> tuple[list[int | None], FloatArray]:
        """(mask per kind, cost per row) of ``k`` GPUs."""
        masks = machines.masks(k)
        return masks, machines.row_costs(masks)

    def following(among: IntArray, wanted: int) -> tuple[int, int] | None:
        """The next row, and its mask of at most ``wanted`` GPUs."""
        count = int(min(wanted, capacity[among].max(initial=0)))
        while count > 0:
            masks, costs = offers(count)
            able = among[(capacity[among] >= count) & np.isfinite(costs[among])]
            if len(able):
                row = int(able[np.lexsort((able, machines.left[able], costs[able]))[0]])
                mask = masks[int(machines.of_row[row])]
                return None if mask is None else (row, mask)
            count -= 1  # links are too narrow for this many
        return None

    picked: dict[int, int] = {}
    left = request.gpus
    while left > 0:
        first = np.array([r for r in required if r not in picked], dtype=np.int64)
        among = first[:1] if len(first) else rest[~np.isin(rest, list(picked))]
        later = max(fewest - len(picked) - 1, len(first) - 1, 0)  # nodes that still need a GPU
        step = following(among, left - later)
        if step is None:
            return None
        row, mask = step
        picked[row] = mask
        left -= mask.bit_count()
    most = request.max_nodes if request.max_nodes is not None else len(picked)
    if not fewest <= len(picked) <= most:
        return None
    ordered = sorted(picked)
    return machines.placed(np.array(ordered, dtype=np.int64), [picked[row] for row in ordered])
