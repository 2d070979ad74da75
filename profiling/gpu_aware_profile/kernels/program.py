"""Process that measures the kernels of a class on the only GPU that it sees.

It writes one JSON object a line: ``ready`` after the first results are checked, ``begin``, ``end``
and ``kernel`` of each kernel's measured part, ``done``; or ``wrong`` (result), ``unusable``
(device). Until its standard input says something, and after ``done`` until that ends, it keeps the
GPU working.
"""

import json
import math
import os
import select
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_aware_profile.backends.timing import KernelTime, median_and_spread
from gpu_aware_profile.kernels.arrays import Array, Engine, Kernel, WrongResultError
from gpu_aware_profile.kernels.classes import NEEDED_SHARE, kernels_of
from slurm_gpu_aware.errors import SourceError

_SAMPLE_S = 5e-3  # Least time of a sample: of as many launches as this takes.
_LEAST, _AT_ONCE = 20, 10
_MOST_LAUNCHES = 1 << 16
_OTHER_PRECISIONS = (
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
)
"""Variables by which cuBLAS computes with other numbers than it is asked for."""
_CHUNK_S = 0.05  # Time of one kernel in a row while the GPU is kept working.


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


class _Parent:
    """What the parent says by standard input: something, then its end."""

    def __init__(self) -> None:
        self.told = False
        self.gone = False

    def listen(self) -> None:
        while not self.gone and select.select([0], [], [], 0)[0]:
            self.told = True
            self.gone = not os.read(0, 4096)


def say(event: str, **fields: Any) -> None:
    """Write a line to the parent."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def measure_class(engine: Engine, kernels: Sequence[Kernel], sampler: Sampler) -> None:
    """Measure kernels, in conversation with the parent. Raises WrongResultError."""
    parent = _Parent()
    expected = [sampler.prepare(kernel) for kernel in kernels]
    say("ready")
    _work_until(lambda: parent.told, parent, engine, kernels)
    for kernel, result in zip(kernels, expected, strict=True):
        if parent.gone:
            return
        sampled = sampler.measure(kernel, result, say)
        say("kernel", samples=sampled.samples, spread=sampled.spread, **sampled.time._asdict())
        parent.listen()
    say("done")
    _work_until(lambda: parent.gone, parent, engine, kernels)


def _work_until(
    ended: Callable[[], bool], parent: _Parent, engine: Engine, kernels: Sequence[Kernel]
) -> None:
    """Keep the GPU working, with all kernels in turn."""
    while not ended():
        for kernel in kernels:
            worked_s = 0.0
            while worked_s < _CHUNK_S:
                worked_s += engine.seconds(kernel.launch, 1)
            parent.listen()
            if ended():
                return


def main(argv: Sequence[str]) -> int:
    """``main(["A"])``; without a class only check that CuPy finds its libraries."""
    warnings.simplefilter("ignore")
    for name in _OTHER_PRECISIONS:
        os.environ.pop(name, None)
    try:
        from gpu_aware_profile.backends.timing import libraries
        from gpu_aware_profile.kernels.cuda import CudaEngine

        if not argv:
            libraries()
            return 0
        engine = CudaEngine()
        free, needed = engine.free_bytes(), NEEDED_SHARE * engine.memory_bytes
        if free < needed:
            raise SourceError(
                f"only {free / 2**30:.1f} GiB of its memory are free, {needed / 2**30:.1f} GiB are"
                " needed: does another process use the GPU?"
            )
        measure_class(engine, kernels_of(argv[0], engine), Sampler(engine))
    except WrongResultError as exc:
        say("wrong", error=str(exc))
    except SourceError as exc:
        say("unusable", error=str(exc))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
