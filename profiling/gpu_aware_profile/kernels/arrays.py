"""What a kernel needs of a device; inputs that are equal on all devices; the check of results."""

from collections.abc import Callable
from typing import Any, Protocol

Array = Any  # An array of the device's module, NumPy's or CuPy's.


class WrongResultError(Exception):
    """A kernel computed something else than its reference: the GPU is sick."""


class Engine(Protocol):
    """A device. Precisions: ``fp64``, ``fp32``, and of tensor cores ``tf32`` and ``bf16``."""

    xp: Any  # The array module.
    memory_bytes: int  # Memory of the device, equal for all devices of a model.
    precisions: tuple[str, ...]  # Precisions of matrix products that the device is made for.

    def matmul(
        self, a: Array, b: Array, out: Array, precision: str, transposed: bool = False
    ) -> None:
        """``out = a @ b`` for matrices or stacks of them, ``a @ b.T`` if ``transposed``.

        bf16: inputs are the upper halves of float32 numbers as uint16, ``out`` is float32.
        """

    def gather_sums(
        self,
        starts: Array,
        sources: Array,
        values: Array,
        base: float,
        factor: float,
        out: Array,
    ) -> None:
        """``out[i] = base + factor *`` sum of ``values[sources[starts[i]:starts[i + 1]]]``.

        (n + 1,) int64, (edges,) int32, (m,) float32, (n,) float32. Sums have the same order in
        each call.
        """

    def triad(self, b: Array, c: Array, factor: float, out: Array) -> None:
        """``out = b + factor * c`` in one pass."""

    def seconds(self, launch: Callable[[], None], count: int) -> float:
        """Time of ``count`` launches one after the other. Units: s."""

    def peak(self, what: str) -> float | None:
        """The vendor's peak at the highest clock; None: not known.

        ``what``: a precision (Units: TFLOP/s), or ``memory`` (Units: GB/s).
        """


class Kernel(Protocol):
    """A kernel with its inputs. Each launch computes the same result from them."""

    @property
    def name(self) -> str: ...

    @property
    def work(self) -> float:
        """Operations or bytes of a launch."""

    @property
    def unit(self) -> str:
        """``TFLOP/s`` or ``GB/s``."""

    @property
    def limit(self) -> str | None:
        """What bounds it, for `Engine.peak`; None: nothing alone."""

    def launch(self) -> None: ...

    @property
    def result(self) -> Array:
        """Output of the last launch."""

    def check(self) -> None:
        """Compare the result with a reference of the same inputs. Raises WrongResultError."""


def hashed(xp: Any, count: int, seed: int) -> Array:
    """(count,) uint32, uniform: the finaliser of MurmurHash3 on 0, 1, 2, ..."""
    x = xp.arange(count, dtype=xp.uint32)
    x *= xp.uint32(2654435769)
    x += xp.uint32(seed * 40503 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x ^= x >> xp.uint32(shift)
        x *= xp.uint32(factor)
    x ^= x >> xp.uint32(16)
    return x


def uniform(xp: Any, shape: tuple[int, ...], seed: int, dtype: Any) -> Array:
    """Numbers in [-1, 1) with random bits in all of their mantissas: power depends on the data."""
    count = 1
    for length in shape:
        count *= length
    if xp.dtype(dtype) == xp.dtype(xp.float32):
        x = (hashed(xp, count, seed) >> xp.uint32(8)).astype(xp.float32)
        x *= xp.float32(2.0**-23)
    else:
        x = hashed(xp, count, seed).astype(xp.float64)
        x += hashed(xp, count, seed + 1) * 2.0**-32
        x *= 2.0**-31
    x -= 1.0
    return x.astype(dtype).reshape(shape)


def rounded(xp: Any, values: Array, precision: str) -> Array:
    """Round float32 ``values`` to the inputs that tensor cores take; bf16: as uint16."""
    if precision not in ("tf32", "bf16"):
        return values
    dropped = 13 if precision == "tf32" else 16
    bits = values.view(xp.uint32) + xp.uint32(1 << (dropped - 1))
    bits >>= xp.uint32(dropped)
    if precision == "bf16":
        return bits.astype(xp.uint16)
    return (bits << xp.uint32(dropped)).view(xp.float32)


def as_float64(xp: Any, values: Array) -> Array:
    """The numbers of an array of inputs; uint16 are those of bf16."""
    if values.dtype == xp.uint16:
        values = (values.astype(xp.uint32) << xp.uint32(16)).view(xp.float32)
    return values.astype(xp.float64)


def check_close(xp: Any, what: str, found: Array, expected: Array, tolerance: float) -> None:
    """Raise WrongResultError if any difference is more than ``tolerance``, or not a number."""
    worst = float(xp.abs(found - expected).max())
    if not worst <= tolerance:
        raise WrongResultError(f"{what} is off by {worst:.3g}, more than {tolerance:.3g}")
