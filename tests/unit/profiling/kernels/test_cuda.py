"""The CUDA device of the kernels on a simulated CuPy: matrix layouts, properties, peaks."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from gpu_aware_profile.kernels import cuda
from gpu_aware_profile.kernels.cuda import CudaEngine
from gpu_aware_profile.links import nccl_worker

V100 = {"major": 7, "minor": 0, "multiProcessorCount": 80, "clockRate": 1_530_000}
V100 |= {"memoryClockRate": 877_000, "memoryBusWidth": 4096, "totalGlobalMem": 16_945_512_448}
A100 = {"major": 8, "minor": 0, "multiProcessorCount": 108, "clockRate": 1_410_000}
A100 |= {"memoryClockRate": 1_215_000, "memoryBusWidth": 5120, "totalGlobalMem": 42_297_786_368}
L40S = {"major": 8, "minor": 9, "multiProcessorCount": 142, "clockRate": 2_520_000}
L40S |= {"memoryClockRate": 9_001_000, "memoryBusWidth": 384, "totalGlobalMem": 47_568_257_024}
RATIO = "singleToDoublePrecisionPerfRatio"


class DeviceArray(np.ndarray):
    """An array of NumPy with CuPy's pointer."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def on_device(values):
    return np.ascontiguousarray(values).view(DeviceArray)


TYPES = {0: np.float32, 1: np.float64, 14: np.uint16}


class Blas:
    """cuBLAS on the CPU: matrices lie column by column, as its manual says."""

    def __init__(self):
        self.computed = []

    def _at(self, pointer, kind, shape, leading):
        dtype = np.dtype(TYPES[kind])
        size = leading * (shape[1] - 1) + shape[0]
        buffer = (ctypes.c_char * (size * dtype.itemsize)).from_address(pointer)
        flat = np.frombuffer(buffer, dtype)
        strides = (dtype.itemsize, leading * dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)

    def gemmStridedBatchedEx(  # noqa: N802
        self, handle, op_a, op_b, m, n, k, alpha, a, kind_a, lda, step_a, b, kind_b, ldb, step_b,
        beta, c, kind_c, ldc, step_c, count, compute, algorithm,
    ):  # fmt: skip
        self.computed.append((kind_a, kind_c, compute))
        for pointer, expected in ((alpha, 1.0), (beta, 0.0)):
            assert self._at(pointer, kind_c, (1, 1), 1)[0, 0] == expected
        sizes = [np.dtype(TYPES[kind]).itemsize for kind in (kind_a, kind_b, kind_c)]
        for i in range(count):
            first = self._at(a + i * step_a * sizes[0], kind_a, (k, m) if op_a else (m, k), lda)
            second = self._at(b + i * step_b * sizes[1], kind_b, (n, k) if op_b else (k, n), ldb)
            out = self._at(c + i * step_c * sizes[2], kind_c, (m, n), ldc)
            first, second = (x.T if op else x for x, op in ((first, op_a), (second, op_b)))
            if kind_a == 14:
                first, second = (
                    (x.astype(np.uint32) << 16).view(np.float32) for x in (first, second)
                )
            out[...] = first @ second


@pytest.fixture
def device(monkeypatch):
    """A function that makes an engine of a GPU with these properties."""
    blas = Blas()

    def make(properties):
        runtime = SimpleNamespace(
            getDeviceProperties=lambda number: properties, CUDARuntimeError=RuntimeError
        )
        cupy = SimpleNamespace(
            cuda=SimpleNamespace(
                runtime=runtime, device=SimpleNamespace(get_cublas_handle=lambda: 7)
            ),
            RawKernel=lambda code, name: None,
            ElementwiseKernel=lambda *words: None,
        )
        monkeypatch.setattr(cuda, "libraries", lambda: (cupy, blas))
        engine = CudaEngine()
        engine.blas = blas
        return engine

    return make


@pytest.mark.parametrize(
    ("precision", "computed"),
    [("fp32", (0, 0, 68)), ("tf32", (0, 0, 77)), ("fp64", (1, 1, 70)), ("bf16", (14, 0, 68))],
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("stack", [(), (3,)])
def test_products_of_matrices_that_are_not_square(device, precision, computed, transposed, stack):
    draw = np.random.default_rng(4)
    shapes = (*stack, 5, 7), (*stack, *((4, 7) if transposed else (7, 4)))
    a, b = (draw.integers(-9, 9, shape).astype(np.float32) for shape in shapes)
    expected = a @ (b.swapaxes(-1, -2) if transposed else b)
    if precision == "fp64":
        a, b = a.astype(np.float64), b.astype(np.float64)
    if precision == "bf16":  # small integers are exact in it
        a, b = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b))
    out = on_device(np.zeros((*stack, 5, 4), np.float64 if precision == "fp64" else np.float32))
    engine = device(A100 | {RATIO: 2})
    engine.matmul(on_device(a), on_device(b), out, precision, transposed)
    assert np.array_equal(np.asarray(out), expected)
    assert set(engine.blas.computed) == {computed}


@pytest.mark.parametrize(
    ("properties", "precisions", "gib"),
    [
        (V100 | {RATIO: 2}, ("fp32", "fp64"), 8),
        (A100 | {RATIO: 2}, ("fp32", "tf32", "bf16", "fp64"), 32),
        (L40S | {RATIO: 64}, ("fp32", "tf32", "bf16"), 32),
    ],
)
def test_what_a_gpu_is_made_for(device, properties, precisions, gib):
    engine = device(properties)
    assert engine.precisions == precisions
    assert engine.memory_bytes == gib << 30


@pytest.mark.parametrize(
    ("properties", "peaks"),
    [
        # Data sheets: TFLOP/s, and GB/s.
        (V100, {"fp32": 15.7, "fp64": 7.8, "memory": 900, "tf32": None}),
        (A100, {"fp32": 19.5, "fp64": 19.5, "tf32": 156, "bf16": 312, "memory": 1555}),
        (L40S, {"fp32": None, "memory": 864}),
    ],
)
def test_peaks_are_those_of_the_data_sheets(device, properties, peaks):
    engine = device(properties | {RATIO: 2})
    for what, value in peaks.items():
        found = engine.peak(what)
        assert found is None if value is None else found == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("arch", [70, 80, 90])
@pytest.mark.parametrize("source", [cuda._GATHER, nccl_worker._CHASE], ids=["gather", "chase"])
def test_the_sources_compile_for_v100_a100_and_h100(source, arch):
    """With NVRTC, which needs no GPU, where the extra gpu is installed."""
    pytest.importorskip("cupy")
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as exc:
        pytest.skip(f"no NVRTC: {exc}")
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    options = (f"-arch=sm_{arch}", "--std=c++17", "-ftz=true")  # CuPy's own
    nvrtc.compileProgram(program, options)
    log = nvrtc.getProgramLog(program)
    assert "error" not in log
    assert "warning" not in log.replace("warning: Architectures prior to", "")  # V100
    assert nvrtc.getCUBIN(program)
