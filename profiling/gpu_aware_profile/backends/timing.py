"""Timing backends: what all of them take and give, and the choice of one; what CuPy needs.

A run measures one GPU for one class under one condition. The backends are those of
`process_timing` (kernels of ours, and a program of the site) and what another package brings.
"""

import atexit
import os
import shutil
import statistics
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from slurm_gpu_aware.errors import SourceError, not_installed

_MAD_TO_SIGMA = 1.4826


class SickGpuError(SourceError):
    """The GPU computes wrong results: it gets no time and is not measured further.

    ``reason``: a sentence.
    """

    call = "result"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RunSpec(NamedTuple):
    """One run to measure."""

    slot: int  # Slurm's index of the GPU.
    uuid: str
    environment: Mapping[str, str]  # Variables by which a process sees this GPU only.
    app_class: str
    neighbours: str
    """``idle`` or ``loaded``: whether the other GPUs of the node are measured at the same time."""
    number: int  # Counts the runs of a GPU and class under equal conditions from 0.


class KernelTime(NamedTuple):
    """Time of one kernel within a run."""

    name: str
    value_ms: float
    rate: float
    unit: str  # Of ``rate``: ``TFLOP/s`` or ``GB/s``.
    share: float | None  # ``rate`` over the vendor's peak at the highest clock; None: not known.


class Reading(NamedTuple):
    """Result of a run."""

    value_ms: float
    """Median over the iterations; with kernels the geometric mean of those per unit of work."""
    samples: int | None = None
    spread: float | None = None
    """Relative (1.4826 MAD / median); with several kernels the largest one."""
    kernels: tuple[KernelTime, ...] = ()


class RunControl(Protocol):
    """What a backend has to tell during a run."""

    stopped: threading.Event
    """Set when the measurement ends early; a child process has to be ended then."""

    def warm_up(self) -> None:
        """Wait, while the GPU works, until it is in thermal equilibrium and the others are, too."""

    def window(self) -> AbstractContextManager[None]:
        """The measured part, or one of several: clocks and power are of these."""

    def company(self) -> threading.Event:
        """This GPU is measured; the event is set when all GPUs of this run are.

        The GPU has to work until then, so that the others have loaded neighbours.
        """


class Timing(Protocol):
    """A timing backend. GPUs are measured by one thread each."""

    name: str

    @property
    def classes(self) -> Sequence[str]:
        """Classes that it can measure."""

    def measure(self, run: RunSpec, control: RunControl) -> Reading:
        """Measure. Raises SourceError if this run has no time; if no other one will have a time,
        SickGpuError or LateError.
        """


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median and the relative spread (1.4826 MAD / median) of at least one sample.

    PAL profiles with the median, because a single run may be several times slower for other reasons
    than the GPU. The factor makes the spread an estimate of a standard deviation.
    """
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    return middle, _MAD_TO_SIGMA * deviation / middle


def timing_backend(name: str | None = None) -> Timing | None:
    """The backend of this name, or without a name one that works on this node; None: there is none.

    Raises SourceError if the named one is not known or cannot work here.
    """
    from gpu_aware_profile.backends.process_timing import KernelTiming

    other: Timing | None = None if name == KernelTiming.name else brought("timing")
    if other is not None and name in (None, other.name):
        return other
    if name not in (None, KernelTiming.name):
        raise SourceError(f"no timing backend {name!r} works here; known: {KernelTiming.name}")
    if name is None and find_spec("cupy") is None:
        return None
    return KernelTiming.of_this_node()


def brought(kind: str, *given: Any) -> Any | None:
    """The backend that another package brings for GPUs of this node; None: there is none.

    ``kind``: ``timing``, ``links`` or ``steps``, the name of an entry point of the group
    ``gpu_aware_profile.backends``: a function of ``given`` that returns a backend, or None.
    Raises SourceError.
    """
    for entry in entry_points(group="gpu_aware_profile.backends", name=kind):
        try:
            make = entry.load()
        except Exception as exc:  # the code of others
            raise SourceError(f"the timing backend {entry.value} cannot be loaded: {exc}") from exc
        if (backend := make(*given)) is not None:
            return backend
    return None


_VARIABLE = "CUPY_CACHE_DIR"
_KERNEL_BYTES = 1 << 16


def ensure_compile_cache() -> None:
    """Set CuPy's folder, for this process and those that it starts, to one that can be written.

    CuPy takes one in the home folder, which a service user may not have on the nodes, or whose
    quota is used up, and cannot even be imported then. A folder of ours is removed at the exit.
    """
    usual = os.environ.get(_VARIABLE) or os.path.expanduser("~/.cupy/kernel_cache")
    try:
        os.makedirs(usual, exist_ok=True)
        with tempfile.TemporaryFile(dir=usual) as file:
            file.write(bytes(_KERNEL_BYTES))
    except OSError:
        usual = tempfile.mkdtemp(prefix="gpu-aware-cupy-")
        atexit.register(shutil.rmtree, usual, ignore_errors=True)
    os.environ[_VARIABLE] = usual


def libraries() -> tuple[Any, Any]:
    """CuPy and its cuBLAS. Raises SourceError that says what is missing."""
    try:
        import cupy
    except ImportError as exc:
        if exc.name == "cupy":
            raise SourceError(not_installed("CuPy", "gpu")) from None
        raise SourceError(f"CuPy cannot be loaded: {_first_line(exc)}") from None
    try:
        from cupy.cuda import cublas, nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as exc:
        raise SourceError(
            "CuPy finds no CUDA libraries: load the site's CUDA 12 module, or"
            f" pip install 'cupy-cuda12x[ctk]' ({_first_line(exc)})"
        ) from None
    return cupy, cublas


def nccl_library() -> Any:
    """NCCL of CuPy. Raises SourceError that says what is missing."""
    with warnings.catch_warnings(action="ignore"):  # CuPy warns without it
        try:
            from cupy.cuda import nccl
        except ImportError as exc:
            raise SourceError(f"CuPy with NCCL cannot be loaded: {_first_line(exc)}") from None
    if not nccl.available:
        raise SourceError(
            "CuPy finds no NCCL: load the site's module, or pip install nvidia-nccl-cu12"
        )
    return nccl


def _first_line(error: Exception) -> str:
    lines = [line.strip(" =") for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)[:200]
