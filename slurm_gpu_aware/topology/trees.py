"""Best balanced binary trees over every set of GPUs: dynamic programming over subsets.

The pattern is the heap-ordered tree: GPU i talks to (i-1)//2. Its subtrees are heap-ordered trees
too, of few different sizes, so one table per subtree size is enough. The best tree of a size
rooted at v over a set is the best way to split the rest of the set into the two child subtrees,
each hung onto v by one link.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np

from slurm_gpu_aware.cluster import FloatArray, IntArray
from slurm_gpu_aware.topology.patterns import heap_children
from slurm_gpu_aware.topology.subsets import (
    mask_of,
    masks_of_size,
    members_of_size,
    rank_of_mask,
    slots_of,
)

__all__ = ["best_tree", "tree_values"]


@lru_cache(maxsize=64)
def _splits(n: int, left: int, right: int) -> tuple[IntArray, IntArray]:
    """All ways to split every set of ``left + right`` GPUs into two sets of these sizes.

    Returns
    -------
    (S, M) ranks of the left and of the right part, M sets of the whole size in tie order. Equal
    sizes are interchangeable: only splits with the lowest GPU on the left are listed.
    """
    size = left + right
    chosen = list(combinations(range(size), left))
    if left == right:
        chosen = [c for c in chosen if 0 in c]
    pick = np.zeros((len(chosen), size))
    for row, columns in enumerate(chosen):
        pick[row, list(columns)] = 1.0
    # Float products of powers of two below 2^16 are exact, and BLAS makes them quick.
    part = (pick @ (1 << members_of_size(n, size)).astype(np.float64)).astype(np.int64)
    rank = rank_of_mask(n)
    other = masks_of_size(n, size) ^ part
    return rank[part], rank[other]


class _Trees:
    """Tables of one machine and one way to combine links (sum or minimum)."""

    def __init__(self, weights: FloatArray, *, total: bool) -> None:
        self.weights = weights
        self.n = weights.shape[0]
        self.total = total
        self._hung: dict[int, FloatArray] = {}
        self._rooted: dict[int, FloatArray] = {}

    def _join(self, a: FloatArray, b: FloatArray) -> FloatArray:
        return a + b if self.total else np.minimum(a, b)

    def rooted(self, size: int) -> FloatArray:
        """(n, C(n, size)) best tree over each set rooted at each GPU; -inf for GPUs outside."""
        if size not in self._rooted:
            self._rooted[size] = self._build(size)
        return self._rooted[size]

    def hung(self, size: int) -> FloatArray:
        """(n, C(n, size)) best tree over each set, hung by one link onto each GPU outside it."""
        if size not in self._hung:
            members = members_of_size(self.n, size)
            trees = self.rooted(size)[members, np.arange(members.shape[1])]
            # (n, size, M): the link from the GPU outside to each possible root.
            self._hung[size] = self._join(self.weights[:, members], trees[None]).max(axis=1)
        return self._hung[size]

    def _build(self, size: int) -> FloatArray:
        n = self.n
        masks, rank = masks_of_size(n, size), rank_of_mask(n)
        table = np.full((n, masks.size), -np.inf)
        left, right = heap_children(size)
        for root in range(n):
            inside = np.flatnonzero(masks >> root & 1)
            rest = rank[masks[inside] ^ (1 << root)]
            if left == 0:
                table[root, inside] = 0.0 if self.total else np.inf
            elif right == 0:
                table[root, inside] = self.hung(left)[root, rest]
            else:
                a, b = _splits(n, left, right)
                value = self._join(
                    self.hung(left)[root].take(a[:, rest]),
                    self.hung(right)[root].take(b[:, rest]),
                )
                table[root, inside] = value.max(axis=0)
        return table

    def layout(self, root: int, mask: int, size: int, at: int, out: list[int]) -> None:
        """Write the best tree over ``mask`` rooted at ``root`` into heap positions of ``out``."""
        out[at] = root
        left, right = heap_children(size)
        rank, rest = rank_of_mask(self.n), mask ^ (1 << root)
        if left == 0:
            return
        if right == 0:
            part, other = rest, 0
        else:
            column = rank[rest]
            a, b = (ranks[:, column] for ranks in _splits(self.n, left, right))
            split = int(self._join(self.hung(left)[root, a], self.hung(right)[root, b]).argmax())
            part = int(masks_of_size(self.n, left)[a[split]])
            other = rest ^ part
        for child, length, place in ((part, left, 2 * at + 1), (other, right, 2 * at + 2)):
            if length:
                gpus = list(slots_of(child))
                link = self.weights[root, gpus]
                hung = self._join(link, self.rooted(length)[gpus, rank[child]])
                self.layout(gpus[int(hung.argmax())], child, length, place, out)


def tree_values(weights: FloatArray, k: int, *, total: bool) -> FloatArray:
    """Largest sum (``total``) or bottleneck of the balanced tree over every ``k``-set.

    Parameters
    ----------
    weights : (n, n) GB/s, symmetric. ``k >= 1``; a tree of one GPU has sum 0, bottleneck inf.

    Returns
    -------
    (C(n, k),) in tie order.

    Notes
    -----
    Exact. At most about 7 million splits on 16 GPUs (k = 12).
    """
    return np.asarray(_Trees(weights, total=total).rooted(k).max(axis=0))


def best_tree(weights: FloatArray) -> tuple[int, ...]:
    """GPUs in heap order of the tree with the largest sum over all ``n >= 1`` GPUs.

    Position i is the parent of 2i+1 and 2i+2. Links of weight ``-inf`` are not used as long as a
    tree without them exists. Deterministic.
    """
    n = weights.shape[0]
    trees = _Trees(weights, total=True)
    out = [0] * n
    full = mask_of(list(range(n)))
    trees.layout(int(trees.rooted(n)[:, 0].argmax()), full, n, 0, out)
    return tuple(out)
