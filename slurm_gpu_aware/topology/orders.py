"""Best mappings of a small communication graph onto every set of GPUs, order by order.

The value of a mapping depends only on the pairs of positions that communicate. Many of the k!
orders of a set use the same pairs; k! / symmetries of the graph differ (840 of 40,320 for a cube).
Each is a row of zeros and ones over the pairs, so the sums of all rows on all sets are one matrix
product. The bottlenecks are a bisection with such a product per step.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.topology.extend import exact_type
from slurm_gpu_aware.topology.patterns import Edges
from slurm_gpu_aware.topology.subsets import members_of_size

__all__ = ["MAX_ORDERED", "order_values", "orders_of"]

MAX_ORDERED = 8
"""Largest number of job GPUs for a search by orders."""

_AT_ONCE = 1 << 21  # entries of one product

Rows = npt.NDArray[np.float32]


@lru_cache(maxsize=32)
def orders_of(edges: Edges, k: int) -> Rows:
    """(M, k(k-1)/2) distinct sets of pairs that the graph's edges use over all orders of ``k``."""
    pair_of = np.zeros((k, k), dtype=np.int64)
    for number, (a, b) in enumerate(combinations(range(k), 2)):
        pair_of[a, b] = pair_of[b, a] = number
    order = np.array(list(permutations(range(k))), dtype=np.int64)
    used = np.zeros(len(order), dtype=np.int64)
    for a, b in edges:
        used |= 1 << pair_of[order[:, a], order[:, b]]
    distinct = np.unique(used)
    return ((distinct[:, None] >> np.arange(k * (k - 1) // 2)) & 1).astype(np.float32)


def order_values(weights: FloatArray, edges: Edges, k: int) -> tuple[FloatArray, FloatArray]:
    """Largest sum and largest bottleneck of a mapping of the graph onto every ``k``-set.

    Parameters
    ----------
    weights : (n, n) GB/s, symmetric, n <= 16; k <= ``MAX_ORDERED``.
    edges : pairs of job GPUs 0..k-1, each once, at least one.

    Returns
    -------
    (C(n, k),) sums and (C(n, k),) bottlenecks in tie order. Exact.
    """
    members, used = members_of_size(weights.shape[0], k), orders_of(edges, k)
    first, second = np.triu_indices(k, 1)
    links = weights[members[first], members[second]]
    total = np.empty(links.shape[1])
    kind = exact_type(weights, len(edges))
    wide, exact = used.astype(kind, copy=False), links.astype(kind)
    step = max(1, _AT_ONCE // len(used))
    for start in range(0, len(total), step):
        part = slice(start, start + step)
        total[part] = (wide @ exact[:, part]).max(axis=0)
    return total, _bottlenecks(links, used, len(edges), step)


def _bottlenecks(links: FloatArray, used: Rows, edges: int, step: int) -> FloatArray:
    """Largest link such that some order uses only links as large or larger, on every set."""
    values = np.unique(links)
    low = np.zeros(links.shape[1], dtype=np.int64)  # feasible: no link is below the least value
    high = np.full(links.shape[1], len(values))
    while True:
        open_ = np.flatnonzero(high - low > 1)
        if not len(open_):
            return np.asarray(values[low])
        middle = (low[open_] + high[open_]) // 2
        for start in range(0, len(open_), step):
            part = open_[start : start + step]
            at = middle[start : start + step]
            fine = (links[:, part] >= values[at]).astype(np.float32)
            feasible = (used @ fine).max(axis=0) >= edges
            low[part] = np.where(feasible, at, low[part])
            high[part] = np.where(feasible, high[part], at)
