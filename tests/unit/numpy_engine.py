"""The kernels on NumPy: slow, and with results of which one can be spoiled."""

import sys
import time

import numpy as np

from gpu_aware_profile.kernels.arrays import WrongResultError, as_float64
from gpu_aware_profile.kernels.classes import Convolution, Gemm, PageRank, TransformerBlock, Triad
from gpu_aware_profile.kernels.program import Sampler, measure_class, say


class NumpyEngine:
    """``spoil``: called with the output of each call and the number of calls before it."""

    xp = np
    memory_bytes = 1 << 30
    precisions = ("fp32", "tf32", "bf16", "fp64")

    def __init__(self, spoil=lambda out, call: None):
        self._spoil = spoil
        self.calls = 0

    def _done(self, out):
        self._spoil(out, self.calls)
        self.calls += 1

    def matmul(self, a, b, out, precision, transposed=False):
        if precision == "bf16":
            a, b = (as_float64(np, x).astype(np.float32) for x in (a, b))
        np.matmul(a, b.swapaxes(-1, -2) if transposed else b, out=out)
        self._done(out)

    def gather_sums(self, starts, sources, values, base, factor, out):
        np.add.reduceat(values[sources], starts[:-1], out=out)
        out *= np.float32(factor)
        out += np.float32(base)
        self._done(out)

    def triad(self, b, c, factor, out):
        np.multiply(c, factor, out=out)
        out += b
        self._done(out)

    def seconds(self, launch, count):
        begin = time.perf_counter()
        for _ in range(count):
            launch()
        return max(time.perf_counter() - begin, 1e-9)

    def peak(self, what):
        return {"fp32": 0.1, "memory": 20.0}.get(what)


def small_kernels(engine):
    """All kernels, in sizes for tests."""
    return [
        *(Gemm(engine, 48, precision) for precision in engine.precisions),
        Convolution(engine, 2, 6, 16),
        TransformerBlock(engine, 2, 16, 128),
        PageRank(engine, 2000),
        Triad(engine, 5000),
    ]


def stuck_bit(out, call):
    """Change one bit of a number in all launches after the first ones."""
    if call >= 45:
        out.reshape(-1).view(np.uint64 if out.dtype.itemsize == 8 else np.uint32)[7] ^= 1


def main(what, app_class):
    """The program of a run, as `gpu_aware_profile.kernels.program`, for tests."""
    if what == "hang":
        time.sleep(600)
    if what == "crash":
        raise RuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
    engine = NumpyEngine(*([stuck_bit] if what == "stuck" else []))
    kernels = [kernel for kernel in small_kernels(engine) if kernel.name in ("pagerank", "triad")]
    try:
        measure_class(engine, kernels, Sampler(engine, width=0.5, least_s=0.05, most_s=0.2))
    except WrongResultError as exc:
        say("wrong", error=str(exc))


if __name__ == "__main__":
    main(*sys.argv[1:])
