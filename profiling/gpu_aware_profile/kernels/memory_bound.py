"""Kernels of class C: a step of PageRank (a sparse matrix times a vector), and STREAM's triad."""

from __future__ import annotations

from gpu_aware_profile.kernels.arrays import Engine, check_close, hashed

_DAMPING = 0.85
_LEAST, _SPREAD = 8, 17
"""In-degrees are 8 to 24, 16 on average."""
_FACTOR = 3.0
"""Of the triad."""
_CHECKED = 64
"""Rows that are summed again."""
_TOLERANCE = 1e-5
"""Of sums of up to 24 numbers in float32, relative."""


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
        check_close(xp, "the sum of all ranks", total, xp.ones(()), _TOLERANCE)
        for row in (hashed(xp, _CHECKED, 90) % xp.uint32(self._vertices)).tolist():
            first, last = self._starts[row : row + 2].tolist()
            shares = self._shares[self._sources[first:last]].astype(xp.float64)
            expected = self._base + _DAMPING * shares.sum()
            found = self.result[row].astype(xp.float64)
            check_close(xp, f"rank {row}", found / expected, xp.ones(()), _TOLERANCE)


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
