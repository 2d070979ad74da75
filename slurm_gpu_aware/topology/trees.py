"""Best balanced binary trees over every set of GPUs: dynamic programming over subsets.

The pattern is the heap-ordered tree: GPU i communicates with GPU (i-1)//2. Its subtrees are
heap-ordered trees of few different sizes, with one table per size. The best tree over a set rooted
at v is the best split of the rest of the set into two child subtrees, each joined to v by one link.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.topology.patterns import heap_children
from slurm_gpu_aware.topology.subsets import (
    Rows,
    exact_type,
    extended,
    masks_of_size,
    members_of_size,
    rank_of_mask,
    slots_of,
    without_each,
)

_MOST_AT_ONCE = 1 << 14  # splits in one expression, to stay in the caches


@lru_cache(maxsize=64)
def _splits(n: int, left: int, right: int) -> tuple[IntArray, IntArray]:
    """(S, M) ranks of both parts for the S ways to split each of M sets into these sizes.

    The sets are those of ``left + right`` GPUs in tie order. Parts of equal size are
    interchangeable: the lowest GPU is then on the left.
    """
    size = left + right
    chosen = [c for c in combinations(range(size), left) if left != right or 0 in c]
    pick = np.zeros((len(chosen), size))
    pick[np.arange(len(chosen))[:, None], chosen] = 1.0
    # Float products of powers of two below 2^16 are exact, and BLAS is fast.
    part = (pick @ (1 << members_of_size(n, size)).astype(np.float64)).astype(np.int64)
    other = masks_of_size(n, size) ^ part
    return rank_of_mask(n, left)[part], rank_of_mask(n, right)[other]


class Trees:
    """The best trees over all sets of ``k >= 1`` GPUs, with tables of their subtrees. Exact.

    ``weights``: (n, n) GB/s, symmetric. ``ways``: how links combine, ``np.add`` (AggBW) or
    ``np.minimum`` (bottleneck). A row of a table holds a value for each GPU that a tree can be
    joined to, so a split combines two rows for all roots at once: at most about 7 million splits
    on 16 GPUs (k = 12).
    """

    def __init__(self, weights: FloatArray, k: int, *ways: np.ufunc) -> None:
        # Single precision, if exact, halves the memory.
        self.weights = weights.astype(exact_type(weights, k))
        self.n, self.k, self.ways = weights.shape[0], k, ways
        self._joined: dict[int, Rows] = {}
        self._rooted: dict[int, Rows] = {}

    def values(self) -> tuple[FloatArray, ...]:
        """(C(n, k),) the largest value of a tree by each way, in tie order.

        One GPU has the sum 0 and the bottleneck inf. The maxima can belong to different trees.
        """
        return tuple(self._of_size(self.k).max(axis=1).astype(np.float64))

    def best(self, mask: int) -> tuple[int, ...]:
        """GPUs of a mask in heap order of their best tree by the first of the ways.

        Position i is the parent of 2i+1 and 2i+2. Links of weight ``-inf`` are used only if every
        tree has one. Deterministic: the first of the best at each step.
        """
        out = [0] * self.k
        rank = rank_of_mask(self.n, self.k).item(mask)
        root = int(self._of_size(self.k)[0][:, rank].argmax())
        self._layout(slots_of(mask)[root], mask, 0, out)
        return tuple(out)

    def _of_size(self, size: int) -> Rows:
        """(ways, size, M) best tree over each set rooted at each of its members."""
        if size not in self._rooted:
            left, right = heap_children(size)
            if left == 0:
                none = [0.0 if way is np.add else np.inf for way in self.ways]  # without links
                neutral = np.array(none, self.weights.dtype)
                rooted: Rows = np.broadcast_to(neutral[:, None, None], (len(neutral), 1, self.n))
            else:
                below = self._children(left, right).reshape(len(self.ways), -1)
                rooted = below.take(without_each(self.n, size), axis=1)
            self._rooted[size] = rooted
        return self._rooted[size]

    def _joined_to(self, size: int) -> Rows:
        """(ways, M, n) best tree over each set, joined by one link to each GPU outside it."""
        if size not in self._joined:
            ends = members_of_size(self.n, size)  # each possible root
            self._joined[size] = extended(self.weights, ends, self._of_size(size), self.ways)
        return self._joined[size]

    def _children(self, left: int, right: int) -> Rows:
        """(ways, M, n) best pair of trees over each set of ``left + right``, below each root."""
        one = self._joined_to(left)
        if right == 0:
            return one
        other = self._joined_to(right)
        a, b = _splits(self.n, left, right)
        splits, sets = a.shape
        best = np.empty((len(self.ways), sets, self.n), one.dtype)
        step = max(1, _MOST_AT_ONCE // splits)
        for start in range(0, sets, step):
            lefts, rights = a[:, start : start + step], b[:, start : start + step]
            for at, way in enumerate(self.ways):
                pairs = way(one[at].take(lefts, axis=0), other[at].take(rights, axis=0))
                pairs.max(axis=0, out=best[at, start : start + step])
        return best

    def _layout(self, root: int, mask: int, at: int, out: list[int]) -> None:
        """Write the best tree over ``mask`` with this root, by the first of the ways."""
        out[at] = root
        rest, way = mask ^ (1 << root), self.ways[0]
        left, right = heap_children(mask.bit_count())
        part = rest
        if right:
            rank = rank_of_mask(self.n, left + right).item(rest)
            a, b = (ranks[:, rank] for ranks in _splits(self.n, left, right))
            lefts, rights = self._joined_to(left)[0, a, root], self._joined_to(right)[0, b, root]
            part = masks_of_size(self.n, left).item(a[way(lefts, rights).argmax()])
        for child, place in ((part, 2 * at + 1), (rest ^ part, 2 * at + 2)):
            size = child.bit_count()
            if size == 1:
                out[place] = child.bit_length() - 1
            elif size:
                gpus = slots_of(child)
                below = self._of_size(size)[0][:, rank_of_mask(self.n, size).item(child)]
                best = int(way(self.weights[root, list(gpus)], below).argmax())
                self._layout(gpus[best], child, place, out)
