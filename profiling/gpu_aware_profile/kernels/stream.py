"""Triad of the STREAM benchmark: a = b + 3 c.

References
----------
J. D. McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995.
"""

from __future__ import annotations

from gpu_aware_profile.kernels.arrays import Engine, check_close, hashed

__all__ = ["Triad"]

_FACTOR = 3.0


class Triad:
    """On arrays of ``length`` float64; a `Kernel`."""

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
