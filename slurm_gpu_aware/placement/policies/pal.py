"""PM-First and PAL (Jain et al., SC'24, algorithms 1 and 2), and baselines without scores."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment, cells_tried
from slurm_gpu_aware.placement.cells import Cell, first_cell, holds, smallest_bound
from slurm_gpu_aware.placement.facts import Rule
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.level_views import (
    LevelView,
    ScoreTable,
    anywhere,
    flat_table,
    level_views,
    score_table,
    two_levels,
)
from slurm_gpu_aware.placement.policy import Policy, PolicyOptions
from slurm_gpu_aware.placement.selection.base import Choice, fixed_scores
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.shapes import Split, splits


def best_cell(request: Request, cluster: Cluster) -> Cell | None:
    """Return the first cell of PAL's walk that holds a set for the request, or None.

    Algorithm 2 as printed returns without a test for a set; here the walk continues.
    """
    supply = Supply(request, cluster, score_table(cluster, request.app_class))
    levels = level_views(cluster, request.app_class)
    return first_cell(supply, levels, splits(request, cluster))


class Pal(Policy):
    """Walk the L x V matrix from the smallest product; take the first cell with a set.

    Jobs of one GPU get the best GPU (PM-First). Jobs larger than a node get the best GPUs of the
    cluster, under Slurm's constraint the same slots on every node. Within the cell: least
    variability (least sum of scores), then best fit, then the lowest index.

    Exact: no set has a smaller product. Cost: some O(N) vector operations per tested cell, and
    O(W 2^W) for several nodes under Slurm's constraint.
    """

    name = "pal"
    by_levels = True

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        cell = best_cell(request, cluster)
        if cell is None:
            return None
        choice = ByScores().choose(cell)
        return assignment(self.name, cell, choice, cells_tried(cell))


def best_anywhere(supply: Supply, choices: Sequence[Split]) -> tuple[Cell, Choice] | None:
    """Return the set with the least worst score over all splits, then least sum, fewest nodes."""
    level = anywhere(supply.cluster.shape[0])
    found = smallest_bound(supply, level, choices, len(supply.table.values), [])
    if found is None:
        return None
    bound, first = found
    fitting = [first]
    if bound > 0 or supply.request.nodes.whole:  # otherwise all sets have the same sum
        fitting = [split for split in choices if holds(supply, level, split, bound)]
    cells = [Cell(supply, level, bound, split) for split in fitting]
    sets = [(cell, ByScores().choose(cell)) for cell in cells]
    return min(sets, key=_total) if len(sets) > 1 else sets[0]


def _total(pair: tuple[Cell, Choice]) -> int:
    """Sum of scores in units of 1e-5."""
    cell, choice = pair
    rows = fixed_scores(cell, cell.units.searchsorted(choice.nodes)).tolist()
    return sum(own[s] for own, slots in zip(rows, choice.slots, strict=True) for s in slots)


class PmFirst(Policy):
    """The GPUs with the best scores for the job's class, locality ignored.

    With free choice per node these are the G best GPUs on any nodes. Under Slurm's constraint the
    worst score is minimised exactly over node counts, index sets and nodes. (Algorithm 1 prints a
    descending sort, but scores are times, so the lowest is best.)
    """

    name = "pm-first"

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        supply = Supply(request, cluster, score_table(cluster, request.app_class))
        found = best_anywhere(supply, splits(request, cluster))
        if found is None:
            return None
        cell, choice = found
        return assignment(self.name, cell, choice, Rule(self.name))


class _Flat(Policy):
    """All GPUs have equal scores: the first cell decides."""

    best_fit: ClassVar[bool] = True

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        supply = Supply(request, cluster, flat_table(cluster))
        cell = first_cell(supply, self.levels(request, cluster), splits(request, cluster))
        if cell is None:
            return None
        choice = ByScores(best_fit=self.best_fit).choose(cell)
        return assignment(self.name, cell, choice, Rule(self.name))

    def levels(self, request: Request, cluster: Cluster) -> tuple[LevelView, ...]:
        """Return the levels to search, tightest first."""
        return two_levels(cluster)


class Packed(_Flat):
    """Consolidated placement of Tiresias and Gandiva: the tightest level that holds the job.

    Fewest nodes, then best fit (fewest GPUs left), then the lowest index.
    """

    name = "packed"

    def levels(self, request: Request, cluster: Cluster) -> tuple[LevelView, ...]:
        return level_views(cluster, request.app_class)


class BestFit(_Flat):
    """Best fit by node: fewest nodes, then the nodes with the fewest GPUs left (BF in Amaral et
    al., SC'17). Unlike ``packed`` it ignores other levels than the node."""

    name = "best-fit"


class FirstFit(_Flat):
    """First fit: fewest nodes, the first nodes with room, their lowest free slots.

    This is MAPA's baseline ("lowest ids") and FCFS in Amaral et al. What Slurm does: ``slurm``.
    """

    name = "lowest-index"
    best_fit = False


@dataclass(frozen=True)
class RandomOptions(PolicyOptions):
    """Options of `Random`."""

    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise ValueError(f"seed must be a whole number >= 0, not {self.seed!r}")


class Drawn(Fact, frozen=True):
    """The set was drawn."""

    key = "drawn"

    seed: int

    def words(self) -> str:
        return f"drawn with seed {self.seed}"


class Random(Policy):
    """GPUs in random order, without locality.

    The order depends only on ``seed`` and the job's ID. With free choice per node every set is
    equally likely. Under Slurm's constraint the set with the least worst position in the order
    wins, which favours nodes with more free GPUs.
    """

    name = "random"
    options_type = RandomOptions
    options: RandomOptions

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        job = int.from_bytes(hashlib.sha256(request.job_id.encode()).digest()[:8], "big")
        order = np.random.default_rng([self.options.seed, job]).permutation(cluster.exists.size)
        drawn = 1.0 + order.astype(np.float64) * (50.0 / max(order.size, 1))
        table = ScoreTable(drawn.reshape(cluster.shape), cluster.exists)
        found = best_anywhere(Supply(request, cluster, table), splits(request, cluster))
        if found is None:
            return None
        cell, choice = found
        return assignment(self.name, cell, choice, Drawn(self.options.seed))
