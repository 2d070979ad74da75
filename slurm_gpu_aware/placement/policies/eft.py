"""Earliest finish: the least slowdown with a price for breaking up nodes, or a wait that pays.

The cost of a set on one node is L x max V (PAL, eq. 1) x (1 + b x free / W): of the node's W GPUs,
``free`` are free before the job starts, and the bracket counts only if some stay free. The price b
falls with the number of idle nodes, as the next wide job misses one of many less. A set across
nodes is taken if its L x V is below the least cost on one node. Of the sets within a tolerance of
the least cost, those that leave the fewest GPUs of their nodes free are compared by their links
(MAPA), or by their scores where links do not differ.

The planner weighs waiting for such a policy (`wait_rule`): a job waits if a set that frees up later
ends it sooner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment, cells_tried
from slurm_gpu_aware.placement.cells import Cell, first_cell, smallest_bound
from slurm_gpu_aware.placement.drb.machines import slowdown_beside
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile, check_options
from slurm_gpu_aware.placement.facts import Cells
from slurm_gpu_aware.placement.feasible import Supply, all_gpus
from slurm_gpu_aware.placement.level_views import (
    MaskArray,
    by_identity,
    every,
    flat_table,
    level_views,
    pack,
    popcount,
    score_table,
    unpack,
)
from slurm_gpu_aware.placement.policies.mapa import LinkOptions, by_best_links, goal_for
from slurm_gpu_aware.placement.policy import Policy, WaitRule, bad_option, option_number
from slurm_gpu_aware.placement.selection.base import Choice, groups_of, load_of_groups
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.shapes import splits, worst_of_best
from slurm_gpu_aware.topology.locality import with_known_sockets
from slurm_gpu_aware.topology.subsets import slots_of

_MOST_GROUPS = 32  # groups with the fewest free GPUs, for uneven splits
_MOST_NODES = 1 << 20  # a GPU left free counts for so many nodes
_NEVER = 1 << 60
_FEW_ROWS = 256  # up to which leaving out rows takes longer than weighing them


class ByFit(ByScores):
    """Fewest GPUs left free; for cells of a table in which all scores are equal.

    An uneven split takes the nodes that leave the fewest GPUs free, of these the fewest nodes. With
    a limit on its nodes, or nodes that it must have, it takes the nodes with the most GPUs.
    """

    def uneven(self, cell: Cell) -> Choice:
        request = cell.supply.request
        if request.max_nodes is not None or request.nodes.required or request.min_nodes > 2:
            return super().uneven(cell)
        capacity = cell.supply.capacity(cell.units, cell.masks)
        if request.min_nodes == 2:  # so that no node suffices alone
            capacity = np.minimum(capacity, request.gpus - 1)
        free = popcount(cell.supply.free[cell.units]).astype(np.int64)
        numbers = groups_of(cell)
        if len(numbers) > 1:
            load = load_of_groups(cell)[numbers]
            numbers = numbers[np.lexsort((numbers, load))[:_MOST_GROUPS]]
        best: tuple[int, dict[int, int]] | None = None
        for number in numbers.tolist():
            rows = np.flatnonzero((cell.group == number) & (capacity > 0))
            counts = _fitted(request.gpus, rows, capacity[rows], free[rows])
            left = sum(int(free[row]) - count for row, count in counts.items())
            if best is None or left < best[0]:
                best = left, counts
        assert best is not None  # noqa: S101 - the cell holds a set
        chosen = sorted(best[1].items())
        slots = tuple(slots_of(int(cell.masks[row]))[:count] for row, count in chosen)
        nodes = tuple(int(cell.units[row]) for row, _ in chosen)
        return Choice(nodes, slots, sets=None, ties=1)


def _fitted(gpus: int, rows: IntArray, capacity: IntArray, free: IntArray) -> dict[int, int]:
    """Row -> GPUs that it gives. ``capacity``, ``free``: (C,) for these rows.

    A covering knapsack over kinds of rows, with the numbers of a kind in powers of two: exact, in
    O(kinds x gpus x log gpus).
    """
    kinds, counts = np.unique(np.stack([capacity, free]), axis=1, return_counts=True)
    least = np.full(gpus + 1, _NEVER)
    least[0] = 0
    steps: list[tuple[int, int, BoolArray]] = []
    for kind, (gives, has) in enumerate(kinds.T.tolist()):
        more, number = min(int(counts[kind]), -(-gpus // gives)), 1
        while more:
            number = min(number, more)
            covers = min(number * gives, gpus)
            before = np.concatenate([np.zeros(covers, dtype=np.int64), least[: gpus + 1 - covers]])
            cost = before + number * (has * _MOST_NODES + 1)
            steps.append((kind, number, cost < least))
            least = np.minimum(least, cost)
            more, number = more - number, number * 2
    taken, missing = [0] * len(counts), gpus
    for kind, number, better in reversed(steps):
        if better[missing]:
            taken[kind] += number
            missing = max(missing - number * int(kinds[0, kind]), 0)
    found: dict[int, int] = {}
    missing = gpus
    for kind in reversed(range(len(counts))):  # the largest first
        alike = rows[(capacity == kinds[0, kind]) & (free == kinds[1, kind])]
        for row in alike[: taken[kind]].tolist():
            found[row] = min(missing, int(kinds[0, kind]))
            missing -= found[row]
    return found


_SPARE = 4.0  # idle nodes that halve the price of breaking one up; flat from 1 to 4
_EXACT = 1e-9  # products of equal factors in another order are equal
_BOUNDS = {
    "breaking": (0.0, 10.0),
    "tolerance": (0.0, 0.5),
    "wait_cap": (0.0, 10.0),
    "wait_margin": (0.0, 10.0),
    "wait_weight": (1.0, 100.0),
    "longest_wait_s": (0.0, math.inf),
}


@dataclass(frozen=True)
class EftOptions(LinkOptions):
    """Options of `Eft`. All results are flat in the numbers: 0.05 to 0.3, 0 to 0.05."""

    breaking: float = 0.1
    """Price of breaking up a node where none is idle, as a share of the slowdown; 0: none."""
    tolerance: float = 0.02  # Sets that cost at most this share more than the best count as equal.
    wait_cap: float = 0.5
    """Longest wait, as a share of the expected run time; 0: the policy does not wait."""
    wait_margin: float = 0.02
    """Least gain for which a job waits, as a share of the expected run time."""
    wait_weight: float = 1.0
    """Hours of running that an hour of waiting must save; more than 1: shorter waits."""
    longest_wait_s: float = math.inf
    """Longest wait since the first submission to which waiting by choice may lead, s; inf: any."""
    interference: InterferenceProfile | None = None
    """None: interference is not known. It counts on one node only."""
    interference_scope: str = "socket"
    """What jobs share that interfere: ``socket`` (where sockets are known) or ``machine``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (least, most) in _BOUNDS.items():
            if not least <= option_number(value := getattr(self, name)) <= most:
                raise bad_option(name, f"a number from {least:g} to {most:g}", value)
        check_options(self.interference, self.interference_scope)


class Fastest(Fact, frozen=True):
    """The least cost on one node: slowdown times the price for breaking up the node."""

    key = "fastest"

    least_cost: float
    nodes_that_fit: int = 0
    left_free: int = 0  # GPUs of the node that stay free.

    def words(self) -> str:
        kept = f"free nodes kept whole where that costs little ({self.least_cost:.2f})"
        return f"the fastest GPUs, {kept}, {self.left_free or 'none'} left free beside them"


class Interference(Fact, frozen=True):
    """How much the jobs beside a job slow it down."""

    key = "interference"

    factor: float  # Of the GPU that they slow down most.


class Eft(Policy):
    """Least slowdown with a price for breaking up nodes; waits if that ends the job sooner.

    Exact on one node: no set costs less than the tolerance below the chosen one. Cost: one sort of
    the scores on each candidate node beside PAL's search of the levels above.
    """

    name = "eft"
    options_type = EftOptions
    options: EftOptions
    by_levels = True

    def wait_rule(self) -> WaitRule | None:
        given = self.options
        if not given.wait_cap:
            return None
        return WaitRule(given.wait_cap, given.wait_margin, given.wait_weight, given.longest_wait_s)

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        supply = Supply(request, cluster, score_table(cluster, request.app_class))
        beside = self._interference(request, cluster)
        offers = _offers(supply, self.options.breaking, self.options.tolerance, beside)
        least = min((offer.least for offer in offers), default=math.inf)
        across = self._across(supply, least)
        if across is not None:
            found = self._chosen(*across)
        elif offers:
            found = self._on_one_node(offers, least)
        else:
            return None
        if beside is not None:
            worst = max(float(beside[node, list(slots)].max()) for node, slots in found.gpus)
            found = replace(found, slowdown=found.slowdown * worst)
            return found.explained(Interference(round(worst, 4)))
        return found

    def _interference(self, request: Request, cluster: Cluster) -> FloatArray | None:
        """(N, W) slowdown of the job on each GPU by the jobs beside it; None: not known."""
        options, profile = self.options, self.options.interference
        if profile is None or request.application is None:
            return None
        job, scope = (request.application, request.gpus), options.interference_scope
        return slowdown_beside(profile, job, with_known_sockets(cluster), scope)

    def _across(self, supply: Supply, least: float) -> tuple[Cell, Cells] | None:
        """The sets over several nodes that are as good as the best, if that is below ``least``.

        Also what the search tried.
        """
        request, cluster = supply.request, supply.cluster
        wide = [split for split in splits(request, cluster) if split.nodes != 1]
        if any(split.uneven for split in wide):  # no set of these lies on one node
            request = replace(request, min_nodes=max(request.min_nodes, 2))
            supply = Supply(request, cluster, supply.table)
        levels = [level for level in level_views(cluster, request.app_class) if not level.one_node]
        cell = first_cell(supply, levels, wide, least) if wide else None
        if cell is None:
            return None
        # The tolerance is for links. Fit is worth less than scores here: no node is kept whole.
        slack = self.options.tolerance if _differ(cluster.graphs) else 0.0
        bound = cell.score * (1.0 + slack) + _EXACT
        values = supply.table.values
        last = int(values.searchsorted(bound, side="right")) - 1
        whole = Cell(supply, cell.level, last, cell.split)
        flat = Supply(request, cluster, flat_table(cluster))
        part = whole.units, whole.masks
        fitted = Cell(flat, cell.level, 0, cell.split, part=part)
        return fitted, cells_tried(cell, several_nodes=True)

    def _on_one_node(self, offers: list[_Offer], least: float) -> Assignment:
        """Compare the sets within the tolerance of the least cost."""
        limit = least * (1.0 + self.options.tolerance) + _EXACT
        fewest = min(int(o.left[o.cost <= limit].min()) for o in offers if o.least <= limit)
        offer = next(o for o in offers if bool(((o.cost <= limit) & (o.left == fewest)).any()))
        rows = ((offer.cost <= limit) & (offer.left == fewest)).nonzero()[0]
        cell = offer.narrowed(rows, limit)
        return self._chosen(cell, Fastest(round(least, 4), sum(o.fitting for o in offers), fewest))

    def _chosen(self, cell: Cell, fact: Fact) -> Assignment:
        """Choose by links where they differ, else by scores or, over several nodes, by fit."""
        cluster, one_node = cell.supply.cluster, cell.split.nodes == 1
        if not _differ(cluster.graphs):
            selection = ByScores() if one_node else ByFit()
            return assignment(self.name, cell, selection.choose(cell), fact)
        return by_best_links(
            self.name, cell, goal_for(cell.supply.request, self.options.model), fact
        )


class _Offer(NamedTuple):
    """The sets of one level on one node: a row for each node or domain that has enough GPUs."""

    cell: Cell  # With the largest bound, so with all rows.
    scores: FloatArray  # (C, W) scores x interference of the GPUs of each row; inf for others.
    price: FloatArray  # (C,) L x bracket: cost / the worst of ``scores``.
    cost: FloatArray  # (C,) cost of the best set.
    left: IntArray  # (C,) GPUs that stay free on the node.
    least: float
    fitting: int  # Rows with enough GPUs, also those that were left out because they cost too much.

    def narrowed(self, rows: IntArray, limit: float) -> Cell:
        """The cell with these rows and only GPUs that keep the cost within ``limit``."""
        cell, table = self.cell, self.cell.supply.table
        bound = limit / self.price[rows]
        masks: MaskArray = cell.masks[rows]
        if not cell.supply.request.nodes.whole:
            inside = pack(self.scores[rows] <= bound[:, None])
            exact = cell.supply.cluster.indexed[cell.units[rows]]
            masks = np.where(exact, masks & inside, masks)
        last = int(table.values.searchsorted(bound.max(), side="right")) - 1
        return Cell(cell.supply, cell.level, last, cell.split, part=(cell.units[rows], masks))


def _promising(cell: Cell, most: float) -> Cell:
    """The part of a one-node cell with the sets that cost at most ``most`` times the least V."""
    supply, values = cell.supply, cell.supply.table.values
    found = smallest_bound(supply, cell.level, [cell.split], len(values), [])
    assert found is not None  # noqa: S101 - the cell holds a set
    bound = values.item(found[0]) * most * (1.0 + _EXACT) + 2.0 * _EXACT
    last = int(values.searchsorted(bound, side="right")) - 1
    return Cell(supply, cell.level, last, cell.split)


def _offers(
    supply: Supply, breaking: float, tolerance: float, beside: FloatArray | None
) -> list[_Offer]:
    """One-node offers by level, tightest first; none for a request that needs several nodes.

    ``beside``: (N, W) interference of each GPU, a factor of its score.
    """
    request, cluster = supply.request, supply.cluster
    split = next((one for one in splits(request, cluster) if one.nodes == 1), None)
    if split is None:
        return []
    offers = []
    width = cluster.shape[1]
    price_of_idle = breaking / (1.0 + _idle_nodes(supply) / _SPARE)
    scores_of_all = supply.table.scores if beside is None else supply.table.scores * beside
    for level in level_views(cluster, request.app_class):
        if not level.one_node:
            continue
        cell = Cell(supply, level, len(supply.table.values) - 1, split)
        fitting = len(cell.units)
        if not fitting:
            continue
        if fitting > _FEW_ROWS and beside is None:
            cell = _promising(cell, (1.0 + price_of_idle) * (1.0 + tolerance))
        units = cell.units
        bits = unpack(cell.masks, width)
        scores = np.where(bits, scores_of_all[units], np.inf)
        worst = worst_of_best(scores, split.per_node)
        exact = cluster.indexed[units] & (not request.nodes.whole)
        if not every(exact):  # Slurm may take any of these GPUs, or the job takes all
            worst = np.where(exact, worst, np.where(bits, scores, 0.0).max(axis=1))
        free = popcount(supply.free[units]).astype(np.int64)
        left = np.zeros_like(free) if request.nodes.whole else free - split.per_node
        share = price_of_idle * free / _widths(cluster.exists)[units]
        price = level.penalty * (1.0 + share * (left > 0))
        cost = price * worst
        offers.append(_Offer(cell, scores, price, cost, left, float(cost.min()), fitting))
    return offers


def _idle_nodes(supply: Supply) -> int:
    """Number of nodes with all GPUs free."""
    whole = all_gpus(supply.cluster.exists)
    return int(np.count_nonzero((supply.free == whole) & (whole != 0)))


@by_identity
def _widths(exists: BoolArray) -> FloatArray:
    """(N,) GPUs of each node, at least 1."""
    return np.asarray(np.maximum(exists.sum(axis=1), 1), dtype=np.float64)


@by_identity
def _differ(graphs: tuple[HardwareGraph | None, ...]) -> bool:
    """Say whether the links between the GPUs of any node differ."""
    return any(not graph.is_uniform for graph in {id(g): g for g in graphs if g}.values())
