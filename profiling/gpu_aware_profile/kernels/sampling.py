"""Repetition of a kernel until its median is known well enough, and the check of its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_aware_profile.backends.timing import KernelTime, median_and_spread
from gpu_aware_profile.kernels.arrays import Array, Engine, Kernel, WrongResultError

_SAMPLE_S = 5e-3
"""Least time of a sample: of as many launches as this takes."""
_LEAST, _AT_ONCE = 20, 10
_MOST_LAUNCHES = 1 << 16


def interval_ranks(n: int) -> tuple[int, int] | None:
    """Ranks (from 0) of the order statistics of n samples: 95% that the median lies between them.

    It needs no assumption on the distribution [1]_. None: too few samples.

    References
    ----------
    .. [1] H. A. David and H. N. Nagaraja, "Order Statistics", 3rd ed., 2003, section 7.1.
    """
    outside, rank = 0.0, -1
    for k in range(n // 2):
        outside += 2.0 * math.comb(n, k) / 2.0**n if n <= 1000 else 2.0 * _binomial(n, k)
        if outside > 1.0 - 0.95:
            break
        rank = k
    return None if rank < 0 else (rank, n - 1 - rank)


def _binomial(n: int, k: int) -> float:
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2.0)
    return math.exp(log)


def relative_width(samples: Sequence[float]) -> float:
    """Width of the median's 95% interval over the median; infinite: too few samples."""
    ranks = interval_ranks(len(samples))
    if ranks is None:
        return math.inf
    ordered = sorted(samples)
    return (ordered[ranks[1]] - ordered[ranks[0]]) / median_and_spread(ordered)[0]


@dataclass(frozen=True)
class Sampled:
    """A measured kernel."""

    time: KernelTime
    samples: int
    spread: float


@dataclass
class Sampler:
    """Measures kernels on a device.

    A kernel is repeated until the 95% interval of its median is narrower than ``width`` (relative)
    and ``least_s`` have passed, at most for about ``most_s`` of time on the device.
    """

    engine: Engine
    width: float = 0.005
    least_s: float = 2.0
    most_s: float = 4.0

    def prepare(self, kernel: Kernel) -> Array:
        """Launch a kernel and check its result, which is returned. Raises WrongResultError."""
        kernel.launch()
        kernel.check()
        return kernel.result.copy()

    def measure(self, kernel: Kernel, expected: Array, window: Callable[[str], None]) -> Sampled:
        """Measure a kernel. Raises WrongResultError.

        The result of every tenth sample has to be the expected one, bit by bit.

        ``window``: called with ``begin`` and ``end`` around the measured part.
        """
        count = self._launches(kernel)
        samples: list[float] = []
        window("begin")
        while not self._enough(samples, count):
            samples += [self.engine.seconds(kernel.launch, count) / count for _ in range(_AT_ONCE)]
            _check_equal(self.engine, kernel.result, expected)
        window("end")
        seconds, spread = median_and_spread(samples)
        rate = kernel.work / seconds / (1e12 if kernel.unit == "TFLOP/s" else 1e9)
        peak = None if kernel.limit is None else self.engine.peak(kernel.limit)
        time = KernelTime(
            kernel.name, 1e3 * seconds, rate, kernel.unit, None if peak is None else rate / peak
        )
        return Sampled(time, len(samples), spread)

    def _launches(self, kernel: Kernel) -> int:
        """Launches of a sample; a power of two."""
        count = 1
        while count < _MOST_LAUNCHES and self.engine.seconds(kernel.launch, count) < _SAMPLE_S:
            count *= 2
        return count

    def _enough(self, samples: Sequence[float], count: int) -> bool:
        spent = sum(samples) * count
        if spent >= self.most_s:
            return True
        if len(samples) < _LEAST or spent < self.least_s:
            return False
        return relative_width(samples) <= self.width


def _check_equal(engine: Engine, found: Array, expected: Array) -> None:
    """Raise WrongResultError if any bit differs; NaN is equal to itself."""
    xp = engine.xp
    bits = xp.uint64 if found.dtype.itemsize == 8 else xp.uint32
    wrong = int(xp.count_nonzero(found.view(bits) != expected.view(bits)))
    if wrong:
        raise WrongResultError(
            f"{wrong} of {found.size} numbers differ from those of the first launch"
        )
