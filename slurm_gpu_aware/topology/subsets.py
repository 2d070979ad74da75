"""Subsets of up to 16 GPUs as bit masks, in tie order.

Tie order is the lexicographic order of the sorted members of subsets of one size ({0,1} < {0,2} <
{1,2}), so the first of several equal sets has the lowest indices. Tables that depend only on n and
k are computed once per process.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray

__all__ = [
    "MAX_EXACT",
    "mask_of",
    "masks_of_size",
    "members_of_size",
    "rank_of_mask",
    "slots_of",
    "without_each",
]

MAX_EXACT = 16
"""Largest machine for which tables over all subsets are built."""


def mask_of(slots: tuple[int, ...] | list[int]) -> int:
    """Bit mask of slots."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


@lru_cache(maxsize=1 << 16)
def slots_of(mask: int) -> tuple[int, ...]:
    """Slots of a bit mask, ascending."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


class _Subsets:
    """The subsets of n GPUs, sorted by size on demand: small jobs need few sizes."""

    def __init__(self, n: int) -> None:
        # Descending masks with GPU 0 as the highest bit are in lexicographic order.
        highest = np.arange((1 << n) - 1, -1, -1, dtype=">u2") << (16 - n)
        bits = np.unpackbits(highest.astype(">u2").view(np.uint8))
        self._mask = np.packbits(bits, bitorder="little").view("<u2")
        self._size = np.zeros(1, dtype=np.uint8)
        for _ in range(n):
            self._size = np.concatenate([self._size + np.uint8(1), self._size])
        self._by_size: dict[int, IntArray] = {}
        self._rank = np.zeros(1 << n, dtype=np.int64)
        self.rank = self._rank.view()
        """Rank of each mask in its size, for the sizes sorted so far. Read-only."""
        self.rank.setflags(write=False)

    def of_size(self, k: int) -> IntArray:
        masks = self._by_size.get(k)
        if masks is None:
            masks = self._mask[self._size == k].astype(np.int64)
            self._rank[masks] = np.arange(masks.size)
            masks.setflags(write=False)
            self._by_size[k] = masks
        return masks


@lru_cache(maxsize=32)
def _by_size(n: int) -> _Subsets:
    if n > MAX_EXACT:
        raise ValueError(f"at most {MAX_EXACT} GPUs can be searched completely, not {n}")
    return _Subsets(n)


def masks_of_size(n: int, k: int) -> IntArray:
    """All C(n, k) masks of ``k`` of ``n`` GPUs in tie order. Read-only."""
    return _by_size(n).of_size(k)


def rank_of_mask(n: int, *sizes: int) -> IntArray:
    """(2^n,) position of each mask in :func:`masks_of_size` of its size. Read-only.

    Valid for masks of these ``sizes``; without any, for all masks.
    """
    subsets = _by_size(n)
    for k in sizes or range(n + 1):
        subsets.of_size(k)
    return subsets.rank


@lru_cache(maxsize=256)
def members_of_size(n: int, k: int) -> IntArray:
    """(k, C(n, k)) members of each mask, ascending down a column. Read-only."""
    masks = masks_of_size(n, k)
    bits = np.unpackbits(masks.astype("<u2").view(np.uint8), bitorder="little").view(np.bool_)
    slots = bits.nonzero()[0] & (MAX_EXACT - 1)
    members = np.ascontiguousarray(slots.reshape(masks.size, k).T)
    members.setflags(write=False)
    return members


@lru_cache(maxsize=256)
def without_each(n: int, k: int) -> IntArray:
    """(k, C(n, k)) for each member of each set: rank of the set without it, times n, plus it.

    It is the flat index of that member in a (C(n, k-1), n) array. Read-only.
    """
    members = members_of_size(n, k)
    shorter = rank_of_mask(n, k - 1)[masks_of_size(n, k) ^ (1 << members)]
    places = np.asarray(shorter * n + members)
    places.setflags(write=False)
    return places
