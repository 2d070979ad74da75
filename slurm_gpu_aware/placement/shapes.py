"""Splits, the shapes of an allocation: one node, even, same indices on each node, uneven.

On a *plain* node Slurm may choose any free GPU, so all its GPUs count with the worst free score. A
job on several nodes takes either indexed nodes (same slots on each), which are preferred, or plain
nodes (same count on each), because its one GRES line names types that the other nodes lack.

Lower bounds of the slowdown that GPUs can give a request, without a search for a set.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Literal

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.level_views import (
    LevelView,
    MaskArray,
    ScoreTable,
    by_identity,
    every,
    level_views,
    pack,
    popcount,
    score_table,
    sets_of,
    superset_counts,
    unpack,
)

Pool = Literal["all", "indexed", "plain"]
_FEW_SLOTS = 8  # GPUs of a node up to which all their sets are looked at
_FEW = 16  # columns up to which one operation for each is quicker than one for each row


@dataclass(frozen=True, eq=False)
class Split:
    """One way to spread a request's GPUs over nodes. Compared by identity, as a search key."""

    nodes: int  # Number of nodes; 0: uneven, any number within the request's bounds.
    per_node: int  # GPUs on each node; 0: uneven.
    same_slots: bool = False  # Every node gives the same slots (one GRES line).
    pool: Pool = "all"

    @property
    def uneven(self) -> bool:
        """Nodes may give different counts."""
        return self.nodes == 0


def splits(request: Request, cluster: Cluster) -> tuple[Split, ...]:
    """Return the splits that the request and the cluster's GRES rule allow, fewest nodes first."""
    counts = request.gpus, request.fewest_nodes, request.max_nodes, request.gpus_per_node
    plain, width = not every(cluster.indexed), cluster.shape[1]
    return _splits(counts, width, request.nodes.whole, cluster.same_indices, plain)


@lru_cache(maxsize=4096)
def _splits(
    counts: tuple[int, int, int | None, int | None],
    width: int,
    whole_node: bool,
    same_indices: bool,
    plain: bool,
) -> tuple[Split, ...]:
    """``counts``: GPUs, least and most nodes, GPUs per node. ``width``: GPUs of the widest node."""
    request = Request("", *counts)
    free_choice = not (whole_node or same_indices or request.gpus_per_node)
    found: list[Split] = []
    for nodes in request.node_counts(width):
        per_node = request.gpus // nodes
        if nodes == 1:
            found.append(Split(1, per_node))
        elif same_indices and not whole_node:
            found.append(Split(nodes, per_node, True, "indexed" if plain else "all"))
            if plain:
                found.append(Split(nodes, per_node, pool="plain"))
        elif not free_choice:
            found.append(Split(nodes, per_node))
    most = request.gpus if request.max_nodes is None else min(request.max_nodes, request.gpus)
    if free_choice and most > 1 and request.fewest_nodes <= most:
        found.append(Split(0, 0))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class LeastSlowdown:
    """Bounds of L x max V of the sets of a request on a cluster, whatever is free."""

    gpus: int
    table: ScoreTable
    choices: tuple[Split, ...]
    inside: float  # Least L of a set on one node; inf if the request needs several.
    beyond: float  # Least L of a set over several nodes; inf if the request does not allow any.
    inner: tuple[LevelView, ...] = ()
    """Levels of sets on one node; of those inside a node only the ones with a lower L."""

    @classmethod
    def of(cls, request: Request, cluster: Cluster) -> LeastSlowdown:
        """Bounds by the levels, the splits and the scores."""
        name = request.app_class
        views, table = level_views(cluster, name), score_table(cluster, name)
        return _least_slowdown(request.gpus, splits(request, cluster), views, table)

    @property
    def across(self) -> float:
        """Bound for any set over several nodes."""
        return self.beyond * self.table.values.item(0)

    @property
    def anywhere(self) -> float:
        """Bound for any set."""
        return min(self.inside, self.beyond) * self.table.values.item(0)

    def on_nodes(self, nodes: IntArray, free: BoolArray) -> FloatArray:
        """(R,) bounds for sets on one node each; inf where too few GPUs are free.

        They are exact but for CPUs, memory and sockets that a request asks for. ``nodes``: (R,);
        ``free``: (R, W) GPUs of these nodes.
        """
        bound = np.full(len(nodes), math.inf)
        for level in self.inner:
            domains = [free]
            if level.domains is not None:
                masks = level.domains[nodes].T
                domains = [free & unpack(mask, free.shape[1]) for mask in masks]
            for inside in domains:
                worst = level.penalty * self._worst(nodes, inside, self.gpus)
                np.minimum(bound, worst, out=bound)
        return bound

    def among(self, free: BoolArray, *, common: bool = False) -> float:
        """Bound for the sets of these (N, W) GPUs; inf: too few.

        ``common``: of sets with the same indices on each node, exact but for CPUs, memory and nodes
        that a request asks for; inf also if it needs no such sets, or on wide or plain nodes.
        """
        same = any(one.same_slots for one in self.choices) and free.shape[1] <= _FEW_SLOTS
        if common and not (same and all(one.pool == "all" for one in self.choices)):
            return math.inf
        masks, values, best = pack(free), self.table.values, math.inf
        for split in self.choices:
            if split.uneven:
                scores = self.table.scores[free][None, :]
                best = min(best, self.beyond * worst_of_best(scores, self.gpus).item())
                continue
            level = self.inside if split.nodes == 1 else self.beyond
            enough = partial(self._enough, masks, split, common)
            less = int((level * values).searchsorted(best))
            if less and enough(less - 1):
                best = level * values.item(bisect_left(range(less - 1), True, key=enough))
        return best

    def _enough(self, masks: MaskArray, split: Split, common: bool, index: int) -> bool:
        """Whether enough of these (N,) GPUs have a score of at most ``values[index]``."""
        there = masks & self.table.at_most(index)
        many = popcount(there) >= split.per_node
        nodes, width = np.count_nonzero(many), self.table.scores.shape[1]
        if nodes < split.nodes or not (common and split.same_slots):
            return bool(nodes >= split.nodes)
        counts = superset_counts(0, there[many], 1, width)[0]
        return bool(counts[sets_of(width, split.per_node)].max() >= split.nodes)

    def _worst(self, nodes: IntArray, free: BoolArray, count: int) -> FloatArray:
        """(R,) largest of the ``count`` least scores of each node's free GPUs, as `on_nodes`."""
        return worst_of_best(np.where(free, self.table.scores[nodes], math.inf), count)


@by_identity
def _least_slowdown(
    gpus: int, choices: tuple[Split, ...], views: tuple[LevelView, ...], table: ScoreTable
) -> LeastSlowdown:
    inside = beyond = math.inf
    alone = any(split.nodes == 1 for split in choices)
    several = any(split.nodes != 1 for split in choices)
    for level in views:
        if level.one_node and alone:
            inside = min(inside, level.penalty)
        elif not level.one_node and several:
            beyond = min(beyond, level.penalty)
    inner = tuple(level for level in views if level.one_node and alone)
    whole = min((one.penalty for one in inner if one.domains is None), default=math.inf)
    inner = tuple(one for one in inner if one.domains is None or one.penalty < whole)
    return LeastSlowdown(gpus, table, choices, inside, beyond, inner)


def least_largest(values: FloatArray, split: Split, gpus: int) -> float:
    """Bound of the largest value of a set of a split: no set of ``gpus`` GPUs has a lower one.

    ``values``: (N, W) of each GPU; inf: not usable.
    """
    if split.uneven:
        return worst_of_best(values.reshape(1, -1), gpus).item()
    each = worst_of_best(values, split.per_node)
    bound = worst_of_best(each[None, :], split.nodes).item()
    if split.same_slots:
        common = worst_of_best(values.T, split.nodes)
        bound = max(bound, worst_of_best(common[None, :], split.per_node).item())
    return bound


def worst_of_best(scores: FloatArray, count: int) -> FloatArray:
    """(C,) the largest of the ``count`` least scores of each of C rows; inf: they have fewer."""
    width = scores.shape[1]
    if count > width:
        return np.full(len(scores), math.inf)
    if count == 1:
        return reduce(np.minimum, scores.T) if width <= _FEW else scores.min(axis=1)
    if count == width:
        return reduce(np.maximum, scores.T) if width <= _FEW else scores.max(axis=1)
    return np.asarray(np.partition(scores, count - 1, axis=1)[:, count - 1])
