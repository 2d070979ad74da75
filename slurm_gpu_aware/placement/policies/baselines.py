"""Baseline policies: placement without scores."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment
from slurm_gpu_aware.placement.cells import first_cell
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.level_views import (
    LevelView,
    ScoreTable,
    flat_table,
    level_views,
    two_levels,
)
from slurm_gpu_aware.placement.policies.pal import best_anywhere
from slurm_gpu_aware.placement.policy import Policy, PolicyOptions
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.shapes import splits


class _Flat(Policy):
    """All GPUs have equal scores: the first cell decides."""

    rule: ClassVar[str]
    best_fit: ClassVar[bool] = True

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        supply = Supply(request, cluster, flat_table(cluster))
        cell = first_cell(supply, self.levels(request, cluster), splits(request, cluster))
        if cell is None:
            return None
        choice = ByScores(best_fit=self.best_fit).choose(cell)
        why = {"level": cell.level.name}
        return assignment(self.name, cell, choice, why=why, rule=self.rule)

    def levels(self, request: Request, cluster: Cluster) -> tuple[LevelView, ...]:
        """Return the levels to search, tightest first."""
        return two_levels(cluster)


class Packed(_Flat):
    """Consolidated placement of Tiresias and Gandiva: the tightest level that holds the job.

    Fewest nodes, then best fit (fewest GPUs left), then the lowest index.
    """

    name = "packed"
    rule = "tightest level, then fewest GPUs left on the node"

    def levels(self, request: Request, cluster: Cluster) -> tuple[LevelView, ...]:
        return level_views(cluster, request.app_class)


class BestFit(_Flat):
    """Best fit by node: fewest nodes, then the nodes with the fewest GPUs left (BF in Amaral et
    al., SC'17). Unlike ``packed`` it ignores other levels than the node."""

    name = "best-fit"
    rule = "fewest GPUs left on the node"


class FirstFit(_Flat):
    """First fit: fewest nodes, the first nodes with room, their lowest free slots.

    This is MAPA's baseline ("lowest ids") and FCFS in Amaral et al. What Slurm does: ``slurm``.
    """

    name = "lowest-index"
    rule = "first node that has room, lowest free slots"
    best_fit = False


@dataclass(frozen=True)
class RandomOptions(PolicyOptions):
    """Options of `Random`."""

    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise ValueError(f"seed must be a whole number >= 0, not {self.seed!r}")


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
        why = {"seed": self.options.seed}
        return assignment(self.name, cell, choice, why=why, rule=f"drawn with seed {why['seed']}")
