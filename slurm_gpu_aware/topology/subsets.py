"""Subsets of up to 16 GPUs as bit masks, in the order that breaks every tie.

All subsets of one size stand in lexicographic order of their sorted members ({0,1} < {0,2} <
{1,2}), so the first of several equal sets is the one with the lowest indices. What depends on the
numbers n and k alone is computed once per process and shared by all machines.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.cluster import IntArray

__all__ = ["MAX_EXACT", "mask_of", "masks_of_size", "members_of_size", "rank_of_mask", "slots_of"]

MAX_EXACT = 16
"""Largest machine for which tables over all subsets are built."""

BitArray = npt.NDArray[np.int64]


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


@lru_cache(maxsize=32)
def _by_size(n: int) -> tuple[tuple[IntArray, ...], IntArray]:
    """Masks of each size 0..n in tie order, and the rank of each mask within its size."""
    if n > MAX_EXACT:
        raise ValueError(f"at most {MAX_EXACT} GPUs can be searched completely, not {n}")
    # Counting the masks with GPU 0 as the highest bit downwards is lexicographic order.
    mask = np.zeros(1, dtype=np.int64)
    size = np.zeros(1, dtype=np.int64)
    for bit in reversed(range(n)):
        mask = np.concatenate([mask | (1 << bit), mask])
        size = np.concatenate([size + 1, size])
    masks = tuple(mask[size == k] for k in range(n + 1))
    rank = np.empty(1 << n, dtype=np.int64)
    for group in masks:
        rank[group] = np.arange(group.size)
        group.setflags(write=False)
    rank.setflags(write=False)
    return masks, rank


def masks_of_size(n: int, k: int) -> IntArray:
    """All C(n, k) masks of ``k`` of ``n`` GPUs in tie order. Read-only."""
    return _by_size(n)[0][k]


def rank_of_mask(n: int) -> IntArray:
    """(2^n,) position of each mask in :func:`masks_of_size` of its size. Read-only."""
    return _by_size(n)[1]


@lru_cache(maxsize=256)
def members_of_size(n: int, k: int) -> IntArray:
    """(k, C(n, k)) members of each mask, ascending down a column. Read-only."""
    masks = masks_of_size(n, k)
    bits = (masks[:, None] >> np.arange(n)) & 1
    members = np.ascontiguousarray(np.nonzero(bits)[1].reshape(masks.size, k).T)
    members.setflags(write=False)
    return members
