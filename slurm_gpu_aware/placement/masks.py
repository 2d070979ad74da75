"""Bit masks over slots: the (N, W) arrays of a cluster as one integer per node.

Bit ``s`` of a node's integer stands for slot ``s``. Questions such as "which free GPUs have at most
this score" are then one vector operation over N integers.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE
from slurm_gpu_aware.model.arrays import BoolArray, IntArray

_NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"

MaskArray = npt.NDArray[Any]
"""Unsigned integers; bit s stands for slot s."""


def every(bits: BoolArray) -> bool:
    """Like ``bits.all()``, but three times as fast for few nodes."""
    return int(np.count_nonzero(bits)) == bits.size


def some(bits: BoolArray) -> bool:
    """Like ``bits.any()``, but faster for few nodes."""
    return int(np.count_nonzero(bits)) > 0


@cache
def mask_type(width: int) -> np.dtype[Any]:
    """The smallest unsigned type with a bit for each slot."""
    for size in (8, 16, 32, 64):
        if width <= size:
            return np.dtype(f"u{size // 8}")
    raise ValueError(f"a node has at most {MAX_GPUS_PER_NODE} GPUs, not {width}")


def pack(bits: BoolArray) -> MaskArray:
    """(N, W) truth values to (N,) masks; W <= 64."""
    n, width = bits.shape
    kind = mask_type(width)
    size = kind.itemsize * 8
    if width != size:
        padded = np.zeros((n, size), dtype=np.bool_)
        padded[:, :width] = bits
        bits = padded
    raw = np.packbits(bits.reshape(-1), bitorder="little")
    return raw if size == 8 else raw.view(kind.newbyteorder("<")).astype(kind, copy=False)


def unpack(masks: MaskArray, width: int) -> BoolArray:
    """(M,) masks to (M, W) truth values."""
    shifts = np.arange(width, dtype=masks.dtype)
    return np.asarray((masks[:, None] >> shifts) & masks.dtype.type(1), dtype=np.bool_)


def popcount(masks: MaskArray) -> MaskArray:
    """Number of set bits of each mask."""
    if _NUMPY_2:
        counts: MaskArray = np.bitwise_count(masks)
        return counts
    raw = np.ascontiguousarray(masks)[..., None].view(np.uint8)
    return np.asarray(np.unpackbits(raw, axis=-1).sum(axis=-1, dtype=np.uint8))


@cache
def sets_of(width: int, size: int) -> IntArray:
    """All sets of ``size`` of ``width`` slots as masks, in tie order (0,1 0,2 .. 1,2)."""
    chosen = combinations(range(width), size)
    return np.array([sum(1 << s for s in c) for c in chosen], dtype=np.int64)
