"""Subsets of up to 16 GPUs as bit masks, and the step of the dynamic programs over them.

Tie order is the lexicographic order of the sorted members of subsets of one size ({0,1} < {0,2} <
{1,2}), so the first of several equal sets has the lowest indices. Tables that depend only on n and
k are computed once per process and read-only.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray

MAX_EXACT = 16  # Largest machine for which tables over all subsets are built.

Rows = npt.NDArray[np.floating[Any]]


def mask_of(slots: Iterable[int]) -> int:
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
def _all_masks(n: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """(2^n,) masks of all subsets of n GPUs, lexicographic within a size, and their GPU counts."""
    if n > MAX_EXACT:
        raise ValueError(f"at most {MAX_EXACT} GPUs can be searched completely, not {n}")
    # Descending masks with GPU 0 as the highest bit are in lexicographic order.
    highest = np.arange((1 << n) - 1, -1, -1, dtype=">u2") << (16 - n)
    bits = np.unpackbits(highest.astype(">u2").view(np.uint8))
    counts = np.zeros(1, dtype=np.uint8)
    for _ in range(n):
        counts = np.concatenate([counts + np.uint8(1), counts])
    return np.packbits(bits, bitorder="little").view("<u2"), counts


@lru_cache(maxsize=256)
def masks_of_size(n: int, k: int) -> IntArray:
    """All C(n, k) masks of ``k`` of ``n`` GPUs in tie order."""
    masks, counts = _all_masks(n)
    found: IntArray = masks[counts == k].astype(np.int64)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=256)
def rank_of_mask(n: int, k: int) -> IntArray:
    """(2^n,) position of each mask of ``k`` GPUs in :func:`masks_of_size`; else 0."""
    rank = np.zeros(1 << n, dtype=np.int64)
    masks = masks_of_size(n, k)
    rank[masks] = np.arange(masks.size)
    rank.setflags(write=False)
    return rank


@lru_cache(maxsize=256)
def members_of_size(n: int, k: int) -> IntArray:
    """(k, C(n, k)) members of each mask, ascending down a column."""
    masks = masks_of_size(n, k)
    bits = np.unpackbits(masks.astype("<u2").view(np.uint8), bitorder="little").view(np.bool_)
    slots = bits.nonzero()[0] & (MAX_EXACT - 1)
    members = np.ascontiguousarray(slots.reshape(masks.size, k).T)
    members.setflags(write=False)
    return members


@lru_cache(maxsize=256)
def without_each(n: int, k: int) -> IntArray:
    """(k, C(n, k)) for each member of each set: rank of the set without it, times n, plus it.

    It is the flat index of that member in a (C(n, k-1), n) array.
    """
    members = members_of_size(n, k)
    shorter = rank_of_mask(n, k - 1)[masks_of_size(n, k) ^ (1 << members)]
    places = np.asarray(shorter * n + members)
    places.setflags(write=False)
    return places


def exact_type(weights: FloatArray, links: int) -> type[np.floating[Any]]:
    """Single precision if every sum of ``links`` weights is exact in it, else double.

    Link bandwidths are whole multiples of 1/1024 GB/s: 24 bits hold sums below 16,384 GB/s.
    """
    steps = np.abs(weights[np.isfinite(weights)]) * 1024.0
    small = float(steps.max(initial=0.0)) * links < 1 << 24
    return np.float32 if small and bool((steps == np.rint(steps)).all()) else np.float64


def extended(weights: Rows, ends: IntArray, values: Rows, ways: Sequence[np.ufunc]) -> Rows:
    """(ways, M, n) best extension of P partial placements over each of M sets to each GPU.

    ``weights``: (n, n) GB/s. ``ends``: (P, M) GPU at which each placement is extended by one link.
    ``values``: (ways, P, M) of the placements, one for each way to combine links. Rows include the
    GPUs of the set; the caller selects.
    """
    n = weights.shape[0]
    best = np.full((len(ways), ends.shape[1], n), -np.inf, weights.dtype)
    room = np.empty_like(best[0])
    for place, end in enumerate(ends):
        links = weights.take(end, axis=0)
        for at, way in enumerate(ways):
            way(links, values[at, place][:, None], out=room)
            np.maximum(best[at], room, out=best[at])
    return best
