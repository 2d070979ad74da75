"""Kernels of each class, in sizes that follow the memory of the device.

Sizes depend on the nominal memory only, so GPUs with equal memories always do the same work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gpu_aware_profile.kernels.arrays import Engine, Kernel
from gpu_aware_profile.kernels.compute_bound import Convolution, Gemm
from gpu_aware_profile.kernels.memory_bound import PageRank, Triad
from gpu_aware_profile.kernels.transformer import TransformerBlock

NEEDED_SHARE = 0.5
"""Part of the nominal memory that has to be free."""
_LARGE = 24 << 30
"""From this memory on the transformer block is the wider one. Units: bytes."""


def _compute_bound(engine: Engine) -> list[Kernel]:
    """Matrix products in all precisions of the device, and a convolution."""
    # Three matrices of float64 in a sixteenth of the memory.
    n = _multiple(math.isqrt(engine.memory_bytes // 16 // 24), 512, 12288)
    pixels = 56 * 56
    batch = _multiple(engine.memory_bytes // 16 // (pixels * 9 * 256 * 4), 4, 32)
    products = [Gemm(engine, n, precision) for precision in engine.precisions]
    return [*products, Convolution(engine, batch, side=56, channels=256)]


def _mixed(engine: Engine) -> list[Kernel]:
    """A transformer block."""
    large = engine.memory_bytes >= _LARGE
    return [TransformerBlock(engine, 16 if large else 8, 512, 2048 if large else 1024)]


def _memory_bound(engine: Engine) -> list[Kernel]:
    """A step of PageRank, and the triad."""
    # A vertex takes up to 384 bytes while its 16 edges are drawn. As many as fit, because 4 bytes
    # for each must not fit into the cache, which has 96 MB in an L40S.
    vertices = _multiple(int(NEEDED_SHARE * engine.memory_bytes) // 384, 1 << 18, 1 << 25)
    length = _multiple(engine.memory_bytes // 24 // 8, 1 << 20, 1 << 29)
    return [PageRank(engine, vertices), Triad(engine, length)]


def _multiple(number: int, step: int, most: int) -> int:
    """The largest multiple of ``step`` up to ``number`` and ``most``, at least one."""
    return max(step, min(number, most) // step * step)


CLASSES: Mapping[str, Callable[[Engine], list[Kernel]]] = {
    "A": _compute_bound,
    "B": _mixed,
    "C": _memory_bound,
}
"""Class -> its kernels: most compute bound first."""


def kernels_of(app_class: str, engine: Engine) -> list[Kernel]:
    """The kernels of a class with their inputs. Raises KeyError for another class."""
    return CLASSES[app_class](engine)
