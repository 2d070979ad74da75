"""As much of CuPy as the measuring processes use, on NumPy, for machines without a GPU.

Devices are numbers; time passes with the work: ``GBPS`` of a copy, ``RING_GBPS`` of an all-reduce.
A copy to the device ``$FAKE_CUPY_WRONG`` loses a word.
"""

import numpy
from numpy import arange, asarray, float32, int64, ones, uint32, zeros  # noqa: F401

from . import cuda


class Array(numpy.ndarray):
    """An array with the address of its data."""

    @property
    def data(self):
        return cuda.Pointer(self)


def _on_device(make):
    return lambda *args, **options: make(*args, **options).view(Array)


arange, asarray, zeros, ones = (_on_device(make) for make in (arange, asarray, zeros, ones))


def __getattr__(name):
    if name == "random":  # CuPy has it only with cuRAND
        raise ImportError('Failure finding "libcurand.so.10"')
    raise AttributeError(name)


class RawKernel:
    """The pointer chase, the only kernel."""

    def __init__(self, code, name):
        assert name in code

    def __call__(self, grid, block, arguments):
        address, steps, end = arguments
        chain, at = cuda.MEMORY[address], 0
        for _ in range(int(steps)):
            at = int(chain[at])
        end[0] = at
        cuda.clock(steps * 1e-6)


class _Pool:
    def free_all_blocks(self):
        pass


def get_default_memory_pool():
    return _Pool()
