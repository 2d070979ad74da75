"""Best balanced binary trees over every set of GPUs: dynamic programming over subsets.

The pattern is the heap-ordered tree: GPU i communicates with GPU (i-1)//2. Its subtrees are
heap-ordered trees of few different sizes, with one table per size. The best tree over a set rooted
at v is the best split of the rest of the set into two child subtrees, each joined to v by one link.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import ClassVar

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.topology.extend import Rows, exact_type, extended
from slurm_gpu_aware.topology.patterns import heap_children
from slurm_gpu_aware.topology.subsets import (
    masks_of_size,
    members_of_size,
    rank_of_mask,
    slots_of,
    without_each,
)

__all__ = ["Trees", "best_tree", "tree_values"]

_MOST_AT_ONCE = 1 << 14  # splits in one expression, to stay in the caches


@lru_cache(maxsize=64)
def _splits(n: int, left: int, right: int) -> tuple[IntArray, IntArray]:
    """All ways to split every set of ``left + right`` GPUs into two sets of these sizes.

    Returns
    -------
    (S, M) ranks of the left and of the right part, for M sets of the whole size in tie order. Equal
    sizes are interchangeable: the lowest GPU is then on the left.
    """
    size = left + right
    chosen = list(combinations(range(size), left))
    if left == right:
        chosen = [c for c in chosen if 0 in c]
    pick = np.zeros((len(chosen), size))
    pick[np.arange(len(chosen))[:, None], chosen] = 1.0
    # Float products of powers of two below 2^16 are exact, and BLAS is fast.
    part = (pick @ (1 << members_of_size(n, size)).astype(np.float64)).astype(np.int64)
    rank = rank_of_mask(n, left, right)
    other = masks_of_size(n, size) ^ part
    return rank[part], rank[other]


class Trees:
    """Tables of one machine for each way to combine links (sum, minimum).

    A row of a table holds a value for each GPU that a tree can be joined to, so a split combines
    two rows for all roots at once. Single precision, if exact, halves the memory.
    """

    NEUTRAL: ClassVar[dict[np.ufunc, float]] = {np.add: 0.0, np.minimum: np.inf}

    def __init__(self, weights: FloatArray, k: int, *ways: np.ufunc) -> None:
        self.weights = weights.astype(exact_type(weights, k))
        self.n, self.k = weights.shape[0], k
        self.ways = ways
        self._joined: dict[int, Rows] = {}
        self._rooted: dict[int, Rows] = {}

    def values(self) -> tuple[FloatArray, FloatArray]:
        """As :func:`tree_values`; the ways are ``np.add`` and ``np.minimum``."""
        total, slowest = self.rooted(self.k).max(axis=1)
        return total.astype(np.float64), slowest.astype(np.float64)

    def best(self, mask: int) -> tuple[int, ...]:
        """GPUs of a mask in heap order of their best tree by the first of the ways.

        Position i is the parent of 2i+1 and 2i+2. Links of weight ``-inf`` are used only if every
        tree has one.

        Deterministic: the first of the best at each step. If this tree also meets a condition, it
        wins among the trees that do.
        """
        out = [0] * self.k
        rank = rank_of_mask(self.n, self.k).item(mask)
        root = int(self.rooted(self.k)[0][:, rank].argmax())
        self._layout(slots_of(mask)[root], mask, self.k, 0, out)
        return tuple(out)

    def rooted(self, size: int) -> Rows:
        """(ways, size, M) best tree over each set rooted at each of its members."""
        if size not in self._rooted:
            self._rooted[size] = self._build(size)
        return self._rooted[size]

    def joined(self, size: int) -> Rows:
        """(ways, M, n) best tree over each set, joined by one link to each GPU outside it."""
        if size not in self._joined:
            ends = members_of_size(self.n, size)  # each possible root
            self._joined[size] = extended(self.weights, ends, self.rooted(size), self.ways)
        return self._joined[size]

    def _build(self, size: int) -> Rows:
        members = members_of_size(self.n, size)
        left, right = heap_children(size)
        if left == 0:
            leaves = np.empty((len(self.ways), *members.shape), self.weights.dtype)
            for at, way in enumerate(self.ways):
                leaves[at] = self.NEUTRAL[way]
            return leaves
        below = self._children(left, right).reshape(len(self.ways), -1)
        return below.take(without_each(self.n, size), axis=1)

    def _children(self, left: int, right: int) -> Rows:
        """(ways, M, n) best pair of trees over each set of ``left + right``, below each root."""
        one = self.joined(left)
        if right == 0:
            return one
        other = self.joined(right)
        a, b = _splits(self.n, left, right)
        splits, sets = a.shape
        ways = len(self.ways)
        best = np.empty((ways, sets, self.n), one.dtype)
        step = min(sets, max(1, _MOST_AT_ONCE // (ways * splits)))
        room = [np.empty(ways * splits * step * self.n, one.dtype) for _ in range(2)]
        for start in range(0, sets, step):
            lefts, rights = a[:, start : start + step].ravel(), b[:, start : start + step].ravel()
            shape = (ways, lefts.size, self.n)
            here, there = (part[: ways * lefts.size * self.n].reshape(shape) for part in room)
            one.take(lefts, axis=1, out=here, mode="clip")
            other.take(rights, axis=1, out=there, mode="clip")
            for at, way in enumerate(self.ways):
                way(here[at], there[at], out=here[at])
            by_split = here.reshape(ways, splits, -1, self.n)
            by_split.max(axis=1, out=best[:, start : start + step])
        return best

    def _layout(self, root: int, mask: int, size: int, at: int, out: list[int]) -> None:
        """Write the best tree over ``mask`` with this root, by the first of the ways."""
        out[at] = root
        left, right = heap_children(size)
        rest, way = mask ^ (1 << root), self.ways[0]
        if left == 0:
            return
        if right == 0:
            part, other = rest, 0
        else:
            rank = rank_of_mask(self.n, size - 1).item(rest)
            a, b = (ranks[:, rank] for ranks in _splits(self.n, left, right))
            split = int(way(self.joined(left)[0, a, root], self.joined(right)[0, b, root]).argmax())
            part = masks_of_size(self.n, left).item(a[split])
            other = rest ^ part
        for child, length, place in ((part, left, 2 * at + 1), (other, right, 2 * at + 2)):
            if length == 1:
                out[place] = child.bit_length() - 1
            elif length:
                gpus = list(slots_of(child))
                below = self.rooted(length)[0][:, rank_of_mask(self.n, length).item(child)]
                best = int(way(self.weights[root, gpus], below).argmax())
                self._layout(gpus[best], child, length, place, out)


def tree_values(weights: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    """Largest sum and largest bottleneck of the balanced tree over every ``k``-set.

    Parameters
    ----------
    weights : (n, n) GB/s, symmetric.
    k : GPUs of the tree, >= 1; a tree of one GPU has sum 0 and bottleneck inf.

    Returns
    -------
    (C(n, k),) sums and (C(n, k),) bottlenecks in tie order.

    Notes
    -----
    Exact. At most about 7 million splits on 16 GPUs (k = 12).
    """
    return Trees(weights, k, np.add, np.minimum).values()


def best_tree(weights: FloatArray) -> tuple[int, ...]:
    """GPUs in heap order of the tree with the largest sum over all ``n >= 1``; see `Trees.best`."""
    n = weights.shape[0]
    return Trees(weights, n, np.add).best((1 << n) - 1)
