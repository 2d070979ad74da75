"""NVIDIA's management library, as far as clocks need it, through ctypes.

The package ``nvidia-ml-py``, which everything else uses (`gpu_aware_profile.nvml`), describes the
whole library and takes five times as long to import as all of a hook's other work.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Gpu", "Nvml", "NvmlError"]

LIBRARY = "libnvidia-ml.so.1"
_UNSUPPORTED = (3, 13, 26)
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND of an older driver, DEPRECATED of a newer one."""
_NO_FUNCTION = 13
_NO_LIBRARY = 12
_MOST_CLOCKS = 4096


class NvmlError(Exception):
    """A call failed: its name without version, NVML's own words."""

    def __init__(self, call: str, reason: str, code: int) -> None:
        super().__init__(f"{call}: {reason}")
        self.call = call
        self.reason = reason
        self.unsupported = code in _UNSUPPORTED
        """The GPU or driver does not know this call."""


class Nvml:
    """An open connection to the driver; use as a context manager. Not for sharing over fork."""

    def __enter__(self) -> Nvml:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NvmlError("nvmlInit", f"{LIBRARY} is not installed", _NO_LIBRARY) from None
        self.call("nvmlInit_v2")
        return self

    def __exit__(self, *_: object) -> None:
        self.call("nvmlShutdown")

    def call(self, name: str, *args: object) -> None:
        """Call a function. Raises NvmlError."""
        plain = name.removesuffix("_v2")
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(plain, "Function Not Found", _NO_FUNCTION) from None
        code = function(*args)
        if code != 0:
            words = self._library.nvmlErrorString
            words.restype = ctypes.c_char_p
            raise NvmlError(plain, (words(code) or b"").decode(errors="replace"), code)

    def gpus(self) -> Iterator[Gpu | NvmlError]:
        """All GPUs, in NVML's order; the error of one that cannot be opened."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for nvml_index in range(count.value):
            try:
                yield Gpu(self, nvml_index)
            except NvmlError as exc:
                yield exc


class Gpu:
    """One GPU. Every method asks the driver and raises NvmlError if it refuses."""

    def __init__(self, nvml: Nvml, nvml_index: int) -> None:
        self._nvml = nvml
        self._handle = ctypes.c_void_p()
        nvml.call("nvmlDeviceGetHandleByIndex_v2", nvml_index, ctypes.byref(self._handle))
        minor = ctypes.c_uint()
        self._call("nvmlDeviceGetMinorNumber", ctypes.byref(minor))
        self.minor = minor.value
        """N of ``/dev/nvidiaN``: Slurm's index."""

    def _call(self, name: str, *args: object) -> None:
        self._nvml.call(name, self._handle, *args)

    def has_mig(self) -> bool:
        """Whether MIG is on, so that several jobs may share the GPU."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", ctypes.byref(current), ctypes.byref(pending))
        except NvmlError as exc:
            if exc.unsupported:
                return False
            raise
        return current.value != 0

    def clocks_mhz(self) -> list[int]:
        """Supported SM clocks at the highest memory clock; empty if it cannot tell. Units: MHz."""
        try:
            memory = self._list("nvmlDeviceGetSupportedMemoryClocks")
            if not memory:
                return []
            return self._list("nvmlDeviceGetSupportedGraphicsClocks", max(memory))
        except NvmlError as exc:
            if exc.unsupported:
                return []
            raise

    def _list(self, name: str, *args: int) -> list[int]:
        count = ctypes.c_uint(_MOST_CLOCKS)
        values = (ctypes.c_uint * _MOST_CLOCKS)()
        self._call(name, *args, ctypes.byref(count), values)
        return list(values[: count.value])

    def lock_clock(self, mhz: int) -> None:
        """Hold the SM clock at ``mhz`` (Volta and later). Needs root."""
        self._call("nvmlDeviceSetGpuLockedClocks", mhz, mhz)

    def unlock_clock(self) -> None:
        """Undo :meth:`lock_clock`. Needs root."""
        self._call("nvmlDeviceResetGpuLockedClocks")

    def set_application_clock(self, mhz: int) -> None:
        """Ask for ``mhz`` (a supported clock) for applications: the way before Volta."""
        memory = self._list("nvmlDeviceGetSupportedMemoryClocks")
        self._call("nvmlDeviceSetApplicationsClocks", max(memory), mhz)

    def reset_application_clock(self) -> None:
        """Undo :meth:`set_application_clock`."""
        self._call("nvmlDeviceResetApplicationsClocks")
