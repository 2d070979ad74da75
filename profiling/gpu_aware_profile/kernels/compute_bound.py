"""Kernels of class A: matrix product, checked after Freivalds, and convolution."""

from __future__ import annotations

import math

from gpu_aware_profile.kernels.arrays import (
    Array,
    Engine,
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
