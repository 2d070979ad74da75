"""Kernels of each class, in sizes that follow the memory of the device.

Class A: matrix products, checked after Freivalds, and a convolution. Class B: a transformer block.
Class C: a step of PageRank (a sparse matrix times a vector), and STREAM's triad. Sizes depend on
the nominal memory only, so GPUs with equal memories always do the same work.

The block is the pre-norm block of [1]_: y = x + attention(norm(x)); z = y + W2 relu(W1 norm(y)).

References
----------
.. [1] R. Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from gpu_aware_profile.kernels.arrays import (
    Array,
    Engine,
    Kernel,
    as_float64,
    check_close,
    hashed,
    rounded,
    uniform,
)

_UNIT_ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "tf32": 2.0**-21, "bf16": 2.0**-21}
"""Of an addition; tensor cores truncate, which costs 3 bits."""
_MARGIN = 64.0
_TAPS = [(dy, dx) for dy in range(3) for dx in range(3)]
_HEAD = 64
_BLOCK_TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2}
"""Of outputs of size 1; products in tf32 have 11 bits."""
_DAMPING = 0.85
_LEAST, _SPREAD = 8, 17  # In-degrees are 8 to 24, 16 on average.
_FACTOR = 3.0  # Of the triad.
_CHECKED = 64  # Rows that are summed again.
_SUM_TOLERANCE = 1e-5  # Of sums of up to 24 numbers in float32, relative.
NEEDED_SHARE = 0.5  # Part of the nominal memory that has to be free.
_LARGE = 24 << 30  # From this memory on the transformer block is the wider one. Units: bytes.


def product_tolerance(precision: str, n: int, columns: int) -> float:
    """Limit of the error of n products of numbers in [-1, 1), summed over ``columns`` of them.

    Errors of a sum of n terms grow with sqrt(n) times its size, which is sqrt(n) / 3; those of
    different columns add up as a random walk.
    """
    return _MARGIN * _UNIT_ROUNDOFF[precision] * n / 3.0 * math.sqrt(columns)


def _check_product(engine: Engine, a: Array, b: Array, c: Array, precision: str) -> None:
    """Compare c r with a (b r) for a random vector r of signs. Raises WrongResultError.

    Freivalds' check [1]_ costs n^2 instead of n^3 operations.

    References
    ----------
    .. [1] R. Freivalds, "Probabilistic machines can use less running time", IFIP 1977.
    """
    xp = engine.xp
    columns = b.shape[1]
    signs = 1.0 - 2.0 * (hashed(xp, columns, seed=99) >> xp.uint32(31)).astype(xp.float64)
    expected = as_float64(xp, a) @ (as_float64(xp, b) @ signs)
    tolerance = product_tolerance(precision, a.shape[1], columns)
    check_close(xp, "the product", c.astype(xp.float64) @ signs, expected, tolerance)


class Gemm:
    """Product of two n x n matrices; an `arrays.Kernel`."""

    unit = "TFLOP/s"

    def __init__(self, engine: Engine, n: int, precision: str) -> None:
        xp = engine.xp
        dtype = xp.float64 if precision == "fp64" else xp.float32
        self.name = f"gemm_{precision}"
        self.work = 2.0 * n**3
        self.limit = precision
        self._engine = engine
        self._precision = precision
        self._a, self._b = (
            rounded(xp, uniform(xp, (n, n), seed, dtype), precision) for seed in (10, 20)
        )
        self.result = xp.empty((n, n), dtype)

    def launch(self) -> None:
        """Compute the product."""
        self._engine.matmul(self._a, self._b, self.result, self._precision)

    def check(self) -> None:
        """Check the product. Raises WrongResultError."""
        _check_product(self._engine, self._a, self._b, self.result, self._precision)


class Convolution:
    """3 x 3 filters on images (batch, side, side, channels), to as many channels; a `Kernel`.

    The images are zero padded. Each launch gathers the neighbourhood of each pixel into a row, and
    multiplies (im2col).
    """

    name = "convolution_fp32"
    unit = "TFLOP/s"
    limit = "fp32"

    def __init__(self, engine: Engine, batch: int, side: int, channels: int) -> None:
        xp = engine.xp
        self._engine = engine
        self._side = side
        self._images = xp.zeros((batch, side + 2, side + 2, channels), xp.float32)
        self._images[:, 1:-1, 1:-1, :] = uniform(xp, (batch, side, side, channels), 30, xp.float32)
        self._filters = uniform(xp, (9 * channels, channels), 40, xp.float32)
        self._columns = xp.empty((batch, side, side, 9, channels), xp.float32)
        self.result = xp.empty((batch * side * side, channels), xp.float32)
        self.work = 2.0 * self.result.size * 9 * channels

    def launch(self) -> None:
        """Compute the convolution."""
        side = self._side
        for tap, (dy, dx) in enumerate(_TAPS):
            self._columns[:, :, :, tap, :] = self._images[:, dy : dy + side, dx : dx + side, :]
        rows = self._columns.reshape(self.result.shape[0], -1)
        self._engine.matmul(rows, self._filters, self.result, "fp32")

    def check(self) -> None:
        """Compare the last image with a direct sum over the filters. Raises WrongResultError."""
        xp, side = self._engine.xp, self._side
        image = self._images[-1].astype(xp.float64)
        channels = image.shape[-1]
        filters = self._filters.astype(xp.float64).reshape(9, channels, channels)
        expected = sum(
            image[dy : dy + side, dx : dx + side, :].reshape(-1, channels) @ filters[tap]
            for tap, (dy, dx) in enumerate(_TAPS)
        )
        found = self.result[-side * side :].astype(xp.float64)
        tolerance = product_tolerance("fp32", 9 * channels, columns=1)
        check_close(xp, "the convolution", found, expected, tolerance)


def _norm(xp: Any, x: Array) -> Array:
    """Layer norm of each row, without scale and shift."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    centred *= 1.0 / xp.sqrt(variance + 1e-5)
    return centred


def _softmax(xp: Any, scores: Array) -> Array:
    """Softmax of each row, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    xp.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


class TransformerBlock:
    """A block of ``width`` channels on ``batch`` sequences of ``length`` tokens; a `Kernel`."""

    name = "transformer_block"
    unit = "TFLOP/s"
    limit = None

    def __init__(self, engine: Engine, batch: int, length: int, width: int) -> None:
        xp = engine.xp
        self._engine = engine
        self._batch, self._length, self._width = batch, length, width
        self._precision = "tf32" if "tf32" in engine.precisions else "fp32"
        self._x = uniform(xp, (batch * length, width), 50, xp.float32)
        scale = math.sqrt(3.0 / width)  # weights of variance 1 / width keep the size
        self._weights = [
            scale * uniform(xp, shape, 60 + number, xp.float32)
            for number, shape in enumerate(
                [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
            )
        ]
        tokens = batch * length
        self.work = 2.0 * tokens * (12 * width**2 + 2 * length * width)
        self.result = xp.empty_like(self._x)

    def launch(self) -> None:
        """Compute the block."""
        engine = self._engine

        def product(a: Array, b: Array, transposed: bool = False) -> Array:
            shape = (*a.shape[:-1], b.shape[-2] if transposed else b.shape[-1])
            out = engine.xp.empty(shape, a.dtype)
            engine.matmul(a, b, out, self._precision, transposed)
            return out

        self.result = self._block(self._x, self._batch, self._weights, product)

    def _block(self, x: Array, batch: int, weights: list[Array], product: Any) -> Array:
        xp = self._engine.xp
        length, width = self._length, self._width
        heads = width // _HEAD
        joined = product(_norm(xp, x), weights[0]).reshape(batch, length, 3, heads, _HEAD)
        q, k, v = xp.ascontiguousarray(joined.transpose(2, 0, 3, 1, 4)).reshape(
            3, batch * heads, length, _HEAD
        )
        scores = product(q, k, transposed=True)
        scores *= 1.0 / math.sqrt(_HEAD)
        mixed = product(_softmax(xp, scores), v).reshape(batch, heads, length, _HEAD)
        mixed = xp.ascontiguousarray(mixed.transpose(0, 2, 1, 3)).reshape(batch * length, width)
        y = product(mixed, weights[1])
        y += x
        hidden = product(_norm(xp, y), weights[2])
        xp.maximum(hidden, 0.0, out=hidden)
        z = product(hidden, weights[3])
        z += y
        return z

    def check(self) -> None:
        """Compare the last sequence with the block in float64. Raises WrongResultError."""
        xp = self._engine.xp

        def product(a: Array, b: Array, transposed: bool = False) -> Array:
            return a @ (b.swapaxes(-1, -2) if transposed else b)

        last = self._x[-self._length :].astype(xp.float64)
        weights = [weight.astype(xp.float64) for weight in self._weights]
        expected = self._block(last, 1, weights, product)
        found = self.result[-self._length :].astype(xp.float64)
        check_close(xp, "the block", found, expected, _BLOCK_TOLERANCE[self._precision])


class PageRank:
    """One step from the ranks of a uniform start; a `Kernel`.

    Each vertex has at least one edge out, so the ranks keep the sum 1. Edges come from random
    vertices, so most reads of a rank miss the cache of a GPU if there are enough vertices.
    """

    name = "pagerank"
    unit = "GB/s"
    limit = "memory"

    def __init__(self, engine: Engine, vertices: int) -> None:
        xp = engine.xp
        self._engine = engine
        self._vertices = vertices
        self._base = (1.0 - _DAMPING) / vertices
        degrees = _LEAST + hashed(xp, vertices, 70) % xp.uint32(_SPREAD)
        self._starts = xp.zeros(vertices + 1, xp.int64)
        self._starts[1:] = xp.cumsum(degrees.astype(xp.int64))
        edges = int(self._starts[-1])
        self._sources = (hashed(xp, edges, 80) % xp.uint32(vertices)).astype(xp.int32)
        # The first edge of row i comes from vertex i + 1, so that every vertex has one out.
        own = xp.arange(1, vertices + 1, dtype=xp.int32)
        own[-1] = 0
        self._sources[self._starts[:-1]] = own
        out_degrees = xp.bincount(self._sources, minlength=vertices)
        self._shares = (1.0 / (out_degrees * float(vertices))).astype(xp.float32)
        self.result = xp.empty(vertices, xp.float32)
        # Per edge the number of its source and that one's share; per vertex start and rank.
        self.work = 8.0 * edges + 12.0 * vertices

    def launch(self) -> None:
        """Compute one step."""
        self._engine.gather_sums(
            self._starts, self._sources, self._shares, self._base, _DAMPING, self.result
        )

    def check(self) -> None:
        """Check the sum of all ranks, and some ranks. Raises WrongResultError."""
        xp = self._engine.xp
        total = self.result.sum(dtype=xp.float64)
        check_close(xp, "the sum of all ranks", total, xp.ones(()), _SUM_TOLERANCE)
        for row in (hashed(xp, _CHECKED, 90) % xp.uint32(self._vertices)).tolist():
            first, last = self._starts[row : row + 2].tolist()
            shares = self._shares[self._sources[first:last]].astype(xp.float64)
            expected = self._base + _DAMPING * shares.sum()
            found = self.result[row].astype(xp.float64)
            check_close(xp, f"rank {row}", found / expected, xp.ones(()), _SUM_TOLERANCE)


class Triad:
    """a = b + 3 c of the STREAM benchmark [1]_ on arrays of ``length`` float64; a `Kernel`.

    References
    ----------
    .. [1] J. D. McCalpin, "Memory bandwidth and machine balance in current high performance
       computers", 1995.
    """

    name = "triad"
    unit = "GB/s"
    limit = "memory"

    def __init__(self, engine: Engine, length: int) -> None:
        xp = engine.xp
        self._engine = engine
        # Multiples of 2^-20 below 1: all results are exact, whether the addition is fused or not.
        self._b, self._c = (
            (hashed(xp, length, seed) >> xp.uint32(12)).astype(xp.float64) * 2.0**-20
            for seed in (110, 120)
        )
        self.result = xp.empty(length, xp.float64)
        self.work = 3.0 * 8.0 * length

    def launch(self) -> None:
        """Compute the triad."""
        self._engine.triad(self._b, self._c, _FACTOR, self.result)

    def check(self) -> None:
        """Compare all numbers, which are exact. Raises WrongResultError."""
        expected = self._c * _FACTOR
        expected += self._b
        check_close(self._engine.xp, "the triad", self.result, expected, 0.0)


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
