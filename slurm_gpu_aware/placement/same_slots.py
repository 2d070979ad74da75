"""Index sets against nodes: how good each set of slots is on each node, as one array.

Slurm gives a job on several nodes the same slots on each, so index set and nodes are chosen
together: one row per index set that enough nodes have, one column per node.
"""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.cluster import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.tables import unpack

__all__ = ["SUM_WEIGHT", "first_nodes", "least_sums", "same_keys"]

SUM_WEIGHT = 1 << 16
"""Weight of the sum of scores over GPUs left on the nodes: the sum decides first."""


def first_nodes(key: FloatArray, count: int, must: BoolArray | None) -> int:
    """The index set (row of ``key``) that the first ``count`` nodes have, those in ``must`` aside.

    Node by node: of the sets that are left those which the lowest possible next node has.
    """
    has = np.isfinite(key)
    if must is not None:
        has, count = has[:, ~must], count - int(np.count_nonzero(must))
    alive = np.flatnonzero(has.sum(axis=1) >= count)
    for _ in range(count):
        nxt = has[alive].argmax(axis=1)
        alive = alive[nxt == nxt.min()]
        if len(alive) == 1:
            break
        has[alive, nxt.min()] = False
    return int(alive[0])


def least_sums(key: FloatArray, count: int, must: BoolArray | None) -> FloatArray:
    """(F,) least sum of ``count`` keys of each row of ``key``, those in ``must`` among them."""
    others = count
    sums = np.zeros(len(key))
    if must is not None:
        others -= int(np.count_nonzero(must))
        sums, key = key[:, must].sum(axis=1), key[:, ~must]
    if others:
        sums = sums + np.partition(key, others - 1, axis=1)[:, :others].sum(axis=1)
    return sums


def same_keys(cell: Cell, sets: IntArray, rows: IntArray | None, left: IntArray) -> FloatArray:
    """(F, R) sum of scores and GPUs left for each index set on each row; inf where it lacks one.

    Whole numbers below 2^53, so that floats (and their fast product) are exact.
    """
    masks, units = cell.masks, cell.units
    if rows is not None:
        masks, units, left = masks[rows], units[rows], left[rows]
    key = np.empty((len(sets), len(units)))
    key[:] = left
    if cell.bound_index > 0:
        width = cell.supply.cluster.shape[1]
        member = unpack(sets.astype(np.uint64), width).astype(np.float64)
        fixed = cell.supply.table.fixed[units].astype(np.float64)
        key += (member @ fixed.T) * SUM_WEIGHT
    key[sets[:, None] & ~masks.astype(np.int64) != 0] = np.inf
    return key
