"""Locality levels for the search, with dense group numbers and masks of domains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.placement.identity_cache import by_identity
from slurm_gpu_aware.placement.masks import MaskArray, every, mask_type, pack


@dataclass(frozen=True, eq=False)
class LevelView:
    """A locality level for the search."""

    name: str
    penalty: float
    group: IntArray
    """(N,) group number of each node, 0..groups-1; -1: in no group. Not used by one-node sets."""
    groups: int
    domains: MaskArray | None
    """(N, J) masks of the GPUs of each domain within a node; None: the whole node."""
    one_node: bool
    """The sets of this level lie on one node."""
    any_span: bool = False
    """Sets on one or several nodes belong to this level (PM-First)."""

    @cached_property
    def known(self) -> BoolArray | None:
        """(N,) nodes in a group; None: all."""
        inside = self.group >= 0
        return None if every(inside) else inside


def level_views(cluster: Cluster, app_class: str = "") -> tuple[LevelView, ...]:
    """Return the cluster's levels with L for a class, tightest first. Cached by identity."""
    own = any(app_class in level.by_class for level in cluster.levels)
    return _views(cluster.levels, app_class if own else "")


@by_identity
def _views(levels: tuple[LocalityLevel, ...], app_class: str) -> tuple[LevelView, ...]:
    return tuple(_view(level, level.of(app_class).value) for level in levels)


def inside_groups(cluster: Cluster, of: IntArray) -> Cluster:
    """The cluster with levels inside the groups ``of`` nodes, (N,); -1: in no group."""
    return replace(cluster, levels=_inside_groups(cluster.levels, of))


@by_identity
def _inside_groups(levels: tuple[LocalityLevel, ...], of: IntArray) -> tuple[LocalityLevel, ...]:
    return tuple(
        level if level.group.ndim == 2 else replace(level, group=_both(level.group, of))
        for level in levels
    )


def _both(group: IntArray, of: IntArray) -> IntArray:
    """(N,) numbers of the pairs; -1 if either is -1."""
    inverse = np.unique(np.stack([group, of]), axis=1, return_inverse=True)[1].reshape(-1)
    return np.where((group >= 0) & (of >= 0), inverse, -1).astype(np.int64)


@by_identity
def anywhere(nodes: int) -> LevelView:
    """One level that holds every set, to ignore locality."""
    group = np.zeros(nodes, dtype=np.int64)
    return LevelView("anywhere", 1.0, group, 1, None, one_node=False, any_span=True)


def two_levels(cluster: Cluster) -> tuple[LevelView, LevelView]:
    """Two levels without penalties: one node, then several."""
    group = anywhere(cluster.shape[0]).group
    return (
        LevelView("node", 1.0, group, 1, None, one_node=True),
        LevelView("cluster", 1.0, group, 1, None, one_node=False),
    )


def _view(level: LocalityLevel, penalty: float) -> LevelView:
    group = np.asarray(level.group)
    if group.ndim == 2:
        nodes = np.zeros(group.shape[0], dtype=np.int64)
        return LevelView(level.name, penalty, nodes, 1, _domains(group), one_node=True)
    known = group >= 0
    numbers, inverse = np.unique(group[known], return_inverse=True)
    dense = np.full(group.shape, -1, dtype=np.int64)
    dense[known] = inverse.reshape(-1)
    alone = level.name == "node" or len(numbers) == len(group)
    return LevelView(level.name, penalty, dense, len(numbers), None, one_node=alone)


def _domains(group: IntArray) -> MaskArray:
    """(N, W) group numbers to (N, J) masks, J = most domains on one node."""
    n, width = group.shape
    masks = np.zeros((n, width), dtype=mask_type(width))
    for s in range(width):
        together = group == group[:, s : s + 1]
        members = pack(together)
        leader = (group[:, s] >= 0) & ~together[:, :s].any(axis=1)
        masks[:, s] = np.where(leader, members, 0)
    used = max(1, int((masks != 0).sum(axis=1).max(initial=1)))
    order = np.argsort(masks == 0, axis=1, kind="stable")  # existing domains first, in slot order
    return np.take_along_axis(masks, order, axis=1)[:, :used]
