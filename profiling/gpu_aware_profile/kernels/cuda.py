"""NVIDIA GPUs as devices of the kernels, through CuPy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_aware_profile.backends.timing import libraries
from gpu_aware_profile.kernels.arrays import Array
from slurm_gpu_aware.errors import SourceError

_REAL_32, _REAL_64, _BFLOAT_16 = 0, 1, 14  # cudaDataType
_COMPUTE_32, _COMPUTE_64, _COMPUTE_TF32 = 68, 70, 77
"""cublasComputeType_t; the first does not use tensor cores for float32."""
_DEFAULT_ALGORITHM = -1
_NORMAL, _TRANSPOSED = 0, 1
_TYPES = {
    "fp64": (_REAL_64, _COMPUTE_64),
    "fp32": (_REAL_32, _COMPUTE_32),
    "tf32": (_REAL_32, _COMPUTE_TF32),
    "bf16": (_BFLOAT_16, _COMPUTE_32),
}
"""Precision -> type of the inputs, and of the computation."""
_PER_CLOCK = {
    (7, 0): {"fp32": 64, "fp64": 32},
    (8, 0): {"fp32": 64, "fp64": 64, "tf32": 512, "bf16": 1024},
    (9, 0): {"fp32": 128, "fp64": 128, "tf32": 1024, "bf16": 2048},
}
"""Compute capability -> multiply-adds of an SM per clock, dense, those of tensor cores included.

From NVIDIA's white papers on V100, A100 and H100.
"""
_LARGEST_RATIO = 4  # A GPU is made for float64 if float32 is at most this many times as fast.
_THREADS = 256
_LANES = 8
_GATHER = """
extern "C" __global__ void gather_sums(const long long *starts, const int *sources,
                                       const float *values, float base, float factor, float *out,
                                       int rows)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 8, lane = threadIdx.x % 8;
    float sum = 0;
    if (row < rows)
        for (long long k = starts[row] + lane; k < starts[row + 1]; k += 8)
            sum += values[sources[k]];
    for (int offset = 4; offset; offset /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, offset, 8);
    if (row < rows && lane == 0)
        out[row] = base + factor * sum;
}
"""
"""Eight threads per row, whose sums are added in a fixed order."""


class CudaEngine:
    """`arrays.Engine` of the only GPU that this process sees. Raises SourceError without one."""

    def __init__(self) -> None:
        cupy, self._cublas = libraries()
        self.xp: Any = cupy
        try:
            properties = cupy.cuda.runtime.getDeviceProperties(0)
        except cupy.cuda.runtime.CUDARuntimeError as exc:
            raise SourceError(f"CUDA shows no GPU: {exc}") from None
        self._capability = (properties["major"], properties["minor"])
        self._processors = properties["multiProcessorCount"]
        self._clock_hz = 1e3 * properties["clockRate"]
        self._memory_hz = 1e3 * properties.get("memoryClockRate", 0)
        self._bus_bytes = properties.get("memoryBusWidth", 0) / 8
        self.memory_bytes = 1 << (int(properties["totalGlobalMem"]).bit_length() - 1)
        self.precisions = tuple(self._precisions(properties))
        self._gather = cupy.RawKernel(_GATHER, "gather_sums")
        self._triad = cupy.ElementwiseKernel(
            "float64 b, float64 c, float64 factor", "float64 a", "a = b + factor * c", "triad"
        )
        self._constants = {
            dtype: (np.ones(1, dtype), np.zeros(1, dtype)) for dtype in (np.float32, np.float64)
        }

    def _precisions(self, properties: dict[str, Any]) -> list[str]:
        found = ["fp32"]
        if self._capability >= (8, 0):
            found += ["tf32", "bf16"]
        if properties["singleToDoublePrecisionPerfRatio"] <= _LARGEST_RATIO:
            found.append("fp64")
        return found

    def free_bytes(self) -> int:
        """Memory that no process uses."""
        return int(self.xp.cuda.runtime.memGetInfo()[0])

    def matmul(
        self, a: Array, b: Array, out: Array, precision: str, transposed: bool = False
    ) -> None:
        """See `arrays.Engine`."""
        rows, inner = a.shape[-2:]
        columns = out.shape[-1]
        kind, compute = _TYPES[precision]
        result = _REAL_64 if precision == "fp64" else _REAL_32
        one, zero = self._constants[np.float64 if precision == "fp64" else np.float32]
        # cuBLAS has the columns of a matrix one after the other, so it computes the transposed
        # product from transposed matrices.
        self._cublas.gemmStridedBatchedEx(
            self.xp.cuda.device.get_cublas_handle(),
            *(_TRANSPOSED if transposed else _NORMAL, _NORMAL, columns, rows, inner),
            one.ctypes.data,
            *(b.data.ptr, kind, inner if transposed else columns, inner * columns),
            *(a.data.ptr, kind, inner, rows * inner),
            zero.ctypes.data,
            *(out.data.ptr, result, columns, rows * columns),
            *(out.size // (rows * columns), compute, _DEFAULT_ALGORITHM),
        )

    def gather_sums(
        self,
        starts: Array,
        sources: Array,
        values: Array,
        base: float,
        factor: float,
        out: Array,
    ) -> None:
        """See `arrays.Engine`."""
        rows = out.size
        blocks = -(-rows * _LANES // _THREADS)
        arguments = (starts, sources, values, np.float32(base), np.float32(factor), out)
        self._gather((blocks,), (_THREADS,), (*arguments, np.int32(rows)))

    def triad(self, b: Array, c: Array, factor: float, out: Array) -> None:
        """See `arrays.Engine`."""
        self._triad(b, c, factor, out)

    def seconds(self, launch: Callable[[], None], count: int) -> float:
        """See `arrays.Engine`."""
        begin, end = (self.xp.cuda.Event() for _ in range(2))
        begin.record()
        for _ in range(count):
            launch()
        end.record()
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) / 1e3

    def peak(self, what: str) -> float | None:
        """See `arrays.Engine`. Data sheets may count with a lower clock than the highest one."""
        if what == "memory":
            bandwidth = 2.0 * self._memory_hz * self._bus_bytes / 1e9  # double data rate
            return float(bandwidth) or None
        per_clock = _PER_CLOCK.get(self._capability, {}).get(what)
        if per_clock is None:
            return None
        return float(2.0 * per_clock * self._processors * self._clock_hz / 1e12)
