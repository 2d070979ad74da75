"""Convolution of images with 3 x 3 filters, as a matrix product (im2col)."""

from __future__ import annotations

from gpu_aware_profile.kernels.arrays import Engine, check_close, uniform
from gpu_aware_profile.kernels.gemm import product_tolerance

__all__ = ["Convolution"]

_TAPS = [(dy, dx) for dy in range(3) for dx in range(3)]


class Convolution:
    """Images (batch, side, side, channels), zero padded, to as many channels; a `Kernel`.

    Each launch gathers the neighbourhood of each pixel into a row, and multiplies.
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
