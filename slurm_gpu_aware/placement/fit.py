"""Test of fit: the groups of a level that hold a set of a split.

For the same indices on several nodes the test only counts nodes; ``index_sets`` tests the indices.
"""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.level_views import LevelView
from slurm_gpu_aware.placement.masks import MaskArray
from slurm_gpu_aware.placement.shapes import Split

__all__ = ["fitting_groups", "widest_nodes"]


def fitting_groups(
    supply: Supply, level: LevelView, split: Split, nodes: IntArray, masks: MaskArray
) -> BoolArray:
    """(groups,) groups that hold a set.

    ``nodes``, ``masks``: (C,) node and candidate GPUs of each row; each row can give
    ``split.per_node``.
    """
    if split.uneven:
        return _uneven_groups(supply, level, nodes, masks)
    counts = np.bincount(level.group[nodes], minlength=level.groups)
    return (counts >= split.nodes) & _required_ok(supply, level, nodes)


def _required_ok(supply: Supply, level: LevelView, nodes: IntArray) -> BoolArray:
    """(groups,) groups that hold all required nodes, each among the candidate rows."""
    fine = np.ones(level.groups, dtype=np.bool_)
    required = list(supply.request.required)
    if required:
        fine[:] = False
        groups = set(level.group[required].tolist())
        if len(groups) == 1 and bool(np.isin(required, nodes).all()):
            fine[groups.pop()] = True
    return fine


def _uneven_groups(
    supply: Supply, level: LevelView, nodes: IntArray, masks: MaskArray
) -> BoolArray:
    """(groups,) groups with enough GPUs on an allowed number of nodes."""
    request = supply.request
    capacity = supply.capacity(nodes, masks)
    has = capacity > 0
    group = level.group[nodes]
    number = np.bincount(group[has], minlength=level.groups)
    total = np.bincount(group, weights=capacity, minlength=level.groups)
    fine: BoolArray = (number >= request.fewest_nodes) & (total >= request.gpus)
    fine &= _required_ok(supply, level, nodes[has])
    if request.max_nodes is not None:
        for g in np.flatnonzero(fine):
            inside = group == g
            chosen = widest_nodes(
                request.required, nodes[inside], capacity[inside], request.max_nodes
            )
            fine[g] = int(capacity[inside][chosen].sum()) >= request.gpus
    return fine


def widest_nodes(
    required: tuple[int, ...], nodes: IntArray, capacity: IntArray, most: int
) -> IntArray:
    """Positions of the ``most`` rows that give the most GPUs, required nodes first."""
    optional = ~np.isin(nodes, list(required))
    return np.lexsort((nodes, -capacity, optional))[:most]
