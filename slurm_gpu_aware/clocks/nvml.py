"""NVIDIA's management library by ctypes: the calls that all programs of ours make, and clocks.

Of the hooks it runs in the child process of `driver`; the probe has more questions
(`gpu_aware_profile.devices.nvml`). The package ``nvidia-ml-py`` describes the whole library, but
takes five times as long to import as all of a hook's other work.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod

from slurm_gpu_aware.clocks.driver import Result
from slurm_gpu_aware.clocks.notes import is_ours
from slurm_gpu_aware.errors import DeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import TypeVar

    from slurm_gpu_aware.clocks.notes import Limits

    G = TypeVar("G", bound="Gpu")

LIBRARY = "libnvidia-ml.so.1"
_UNSUPPORTED = (3, 13, 26)
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND of an older driver, DEPRECATED of a newer one."""
_LOST = (15, 16)  # GPU_IS_LOST, RESET_REQUIRED: nothing can use the GPU until it is reset.
_NO_FUNCTION = 13
_NO_LIBRARY = 12
_TIMEOUT = 10
_SM = 1  # nvmlClockType_t
_MOST_CLOCKS = 4096
_GET_LIMIT = "nvmlDeviceGetPowerManagementLimit"
_SET_LIMIT = "nvmlDeviceSetPowerManagementLimit"
"""Needs root. In mW; it outlasts processes, not a reboot or an unloaded driver (NVML's manual)."""
_TEXT_BYTES = 96  # As NVML has them for names, UUIDs and versions.
XID_EVENTS = ctypes.c_ulonglong(8)  # nvmlEventTypeXidCriticalError


def lock(indices: Collection[int], asked_mhz: int) -> Iterator[Result]:
    """Lock GPUs at the supported clock nearest to the asked one."""
    return _each(indices, lambda gpu: _lock(gpu, asked_mhz))


def reset(
    methods: Mapping[int, str], every: bool, limits_mw: Mapping[int, Limits]
) -> Iterator[Result]:
    """Undo the ways by which GPUs were set, and limits; ``every``: on the others both ways."""

    def act(gpu: Gpu) -> Result:
        failed = None
        try:
            _undo_limit(gpu, limits_mw.get(gpu.minor, ()))
        except NvmlError as exc:
            failed = exc
        result = _reset(gpu, methods.get(gpu.minor, ""))
        if failed is not None:
            raise failed
        return result

    return _each(methods, act, every)


def power_limits(indices: Collection[int]) -> Iterator[Result]:
    """Power limits of GPUs."""
    return _each(indices, lambda gpu: Result(gpu.minor, limit_mw=gpu.number(_GET_LIMIT)))


def limit(limits_mw: Mapping[int, Limits], undo: bool) -> Iterator[Result]:
    """Set the last limit of each GPU, or undo what was set."""
    act = _undo_limit if undo else _limit
    return _each(limits_mw, lambda gpu: act(gpu, limits_mw[gpu.minor]))


def meters(indices: Collection[int]) -> Iterator[Result]:
    """UUID, energy and power of GPUs."""
    return _each(indices, _meter)


def states() -> Iterator[Result]:
    """Power, SM clock and reasons for a lower clock of all GPUs."""
    return _each((), _state, every=True)


def places(indices: Collection[int]) -> Iterator[Result]:
    """Places of GPUs in NVML's order."""
    return _each(indices, lambda gpu: Result(gpu.minor, nvml_index=gpu.nvml_index))


def _each(
    indices: Collection[int], act: Callable[[Gpu], Result], every: bool = False
) -> Iterator[Result]:
    """Act on GPUs by minor number; one that fails gives a failed result."""
    wanted = set(indices)
    call, reason = "nvmlDeviceGetMinorNumber", "no such GPU"
    try:
        with Nvml() as nvml:
            for gpu in nvml.gpus(Gpu):
                if isinstance(gpu, NvmlError):
                    # any index that is not found in the end may be this one
                    call, reason = gpu.call, gpu.reason
                elif every or gpu.minor in wanted:
                    wanted.discard(gpu.minor)
                    try:
                        yield act(gpu)
                    except NvmlError as exc:
                        yield Result(gpu.minor, call=exc.call, error=exc.reason)
    except NvmlError as exc:
        call, reason = exc.call, exc.reason
    for index in sorted(wanted):
        yield Result(index, call=call, error=reason)


def _lock(gpu: Gpu, asked_mhz: int) -> Result:
    if gpu.is_divided():
        return Result(gpu.minor, call="lock", error="MIG is on: its clock is that of several jobs")
    mhz = nearest_clock(asked_mhz, gpu.clocks_mhz())
    if gpu.tried("nvmlDeviceSetGpuLockedClocks", mhz, mhz):
        return _changed(gpu, mhz, "locked")
    gpu.call("nvmlDeviceSetApplicationsClocks", gpu.memory_mhz(), mhz)
    return _changed(gpu, mhz, "application")


def _changed(gpu: Gpu, mhz: int = 0, method: str = "") -> Result:
    """The result of a change, with UUID and energy, so that no other child reads these.

    A counter that fails undoes no change.
    """
    result = Result(gpu.minor, mhz, method)
    try:
        result.uuid, result.energy_mj = gpu.text("nvmlDeviceGetUUID"), _energy_mj(gpu)
    except NvmlError:
        pass
    return result


def _limit(gpu: Gpu, limits_mw: Limits) -> Result:
    """Refused for a GPU in parts, and outside the card's range; the driver's state is checked."""
    if gpu.is_divided():
        return Result(gpu.minor, call="limit", error="MIG is on: its limit is that of several jobs")
    wanted_mw = limits_mw[-1]
    least_mw, most_mw = gpu.limit_range_mw()
    if not least_mw <= wanted_mw <= most_mw:
        reach = f"{least_mw / 1e3:g} to {most_mw / 1e3:g} W"
        return Result(gpu.minor, call="limit", error=f"{wanted_mw / 1e3:g} W is not in {reach}")
    gpu.call(_SET_LIMIT, wanted_mw)
    found_mw = gpu.number(_GET_LIMIT)
    if not is_ours(found_mw, (limits_mw[0], wanted_mw)):
        gpu.call(_SET_LIMIT, limits_mw[0])
        return Result(gpu.minor, call="limit", error=f"the driver made it {found_mw / 1e3:g} W")
    changed = _changed(gpu)
    changed.limit_mw = found_mw
    return changed


def _undo_limit(gpu: Gpu, limits_mw: Limits) -> Result:
    """Set the site's own limit again, unless the site has set another one since."""
    if limits_mw and is_ours(gpu.number(_GET_LIMIT), limits_mw):
        gpu.call(_SET_LIMIT, limits_mw[0])
    return _changed(gpu)


def nearest_clock(asked_mhz: int, supported_mhz: Sequence[int]) -> int:
    """Return the supported clock nearest to the asked one; of two equally near the lower."""
    return min(supported_mhz, key=lambda mhz: (abs(mhz - asked_mhz), mhz), default=asked_mhz)


def _reset(gpu: Gpu, method: str) -> Result:
    """Undo one way of setting, or both; what a GPU does not support needs no undoing."""
    for way, undo in (
        ("locked", "nvmlDeviceResetGpuLockedClocks"),
        ("application", "nvmlDeviceResetApplicationsClocks"),
    ):
        if method in (way, ""):
            gpu.tried(undo)
    return _changed(gpu)


def _meter(gpu: Gpu) -> Result:
    uuid, power_mw = gpu.text("nvmlDeviceGetUUID"), gpu.maybe("nvmlDeviceGetPowerUsage")
    return Result(gpu.minor, energy_mj=_energy_mj(gpu), uuid=uuid, power_mw=power_mw)


def _state(gpu: Gpu) -> Result:
    return Result(
        gpu.minor,
        power_mw=gpu.maybe("nvmlDeviceGetPowerUsage"),
        sm_mhz=gpu.maybe("nvmlDeviceGetClockInfo", _SM),
        throttle=gpu.throttle_mask(),
    )


def _energy_mj(gpu: Gpu) -> int | None:
    """GPUs before Volta have no counter; that of one in parts counts for several jobs."""
    if gpu.is_divided():
        return None
    return gpu.maybe("nvmlDeviceGetTotalEnergyConsumption")


class NvmlError(DeviceError):
    """A call failed: its name without version, NVML's own words and number."""

    def __init__(self, call: str, reason: str, code: int) -> None:
        super().__init__(call, reason, unsupported=code in _UNSUPPORTED, lost=code in _LOST)
        self.code = code


class Calls(ABC):
    """Calls by the kind of their answer. All raise NvmlError."""

    @abstractmethod
    def call(self, name: str, *args: object) -> None:
        """Call a function by its name."""

    def tried(self, name: str, *args: object) -> bool:
        """Call a function; False: this GPU or driver does not support it."""
        try:
            self.call(name, *args)
        except NvmlError as exc:
            if exc.unsupported:
                return False
            raise
        return True

    def number(self, name: str, *args: object) -> int:
        """The number that a call writes to its last argument."""
        # Of 32 bits or 64: there is no NVML for machines that are not little-endian.
        value = ctypes.c_ulonglong()
        self.call(name, *args, ctypes.byref(value))
        return value.value

    def maybe(self, name: str, *args: object) -> int | None:
        """Like :meth:`number`; None: this GPU or driver does not support it."""
        value = ctypes.c_ulonglong()
        return value.value if self.tried(name, *args, ctypes.byref(value)) else None

    def text(self, name: str) -> str:
        """The text that a call writes."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(name, buffer, _TEXT_BYTES)
        return buffer.value.decode(errors="replace")


class Nvml(Calls):
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
        """Call a function."""
        plain = name.removesuffix("_v2").removesuffix("_v3")
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(plain, "Function Not Found", _NO_FUNCTION) from None
        code = function(*args)
        if code != 0:
            words = self._library.nvmlErrorString
            words.restype = ctypes.c_char_p
            raise NvmlError(plain, (words(code) or b"").decode(errors="replace"), code)

    def gpus(self, kind: Callable[[Nvml, int], G]) -> Iterator[G | NvmlError]:
        """All GPUs, in NVML's order, as this class; the error of one that cannot be opened."""
        for nvml_index in range(self.number("nvmlDeviceGetCount_v2")):
            try:
                yield kind(self, nvml_index)
            except NvmlError as exc:
                yield exc

    def next_xid(self, events: ctypes.c_void_p, wait_ms: int) -> tuple[int | None, int] | None:
        """(handle of the GPU, XID) of the next error of an event set; None: none until then."""
        event = _EventData()
        try:
            self.call("nvmlEventSetWait_v2", events, ctypes.byref(event), wait_ms)
        except NvmlError as exc:
            if exc.code == _TIMEOUT:
                return None
            raise
        return event.device, int(event.data)


class _EventData(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("instances", ctypes.c_uint * 2),
    )


class Gpu(Calls):
    """One GPU. Every method asks the driver."""

    def __init__(self, nvml: Nvml, nvml_index: int) -> None:
        self._nvml = nvml
        self.nvml_index = nvml_index
        self.handle = ctypes.c_void_p()
        nvml.call("nvmlDeviceGetHandleByIndex_v2", nvml_index, ctypes.byref(self.handle))
        self.minor = self.number("nvmlDeviceGetMinorNumber")
        """N of ``/dev/nvidiaN``: Slurm's index."""

    def call(self, name: str, *args: object) -> None:
        """Call a function of this GPU; to set clocks needs root. Units: MHz."""
        self._nvml.call(name, self.handle, *args)

    def is_divided(self) -> bool:
        """Whether MIG is on, so that several jobs may share the GPU."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        modes = map(ctypes.byref, (current, pending))
        return self.tried("nvmlDeviceGetMigMode", *modes) and current.value != 0

    def throttle_mask(self) -> int | None:
        """Reasons for a lower clock now, as bits (nvmlClocksEventReasons); None: not supported."""
        mask = self.maybe("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:  # a driver before release 535
            mask = self.maybe("nvmlDeviceGetCurrentClocksThrottleReasons")
        return mask

    def limit_range_mw(self) -> tuple[int, int]:
        """Lowest and highest power limit that can be set."""
        least, most = ctypes.c_uint(), ctypes.c_uint()
        self.call("nvmlDeviceGetPowerManagementLimitConstraints", *map(ctypes.byref, (least, most)))
        return least.value, most.value

    def memory_mhz(self) -> int:
        """The highest supported memory clock; 0 without one."""
        return max(self._list("nvmlDeviceGetSupportedMemoryClocks"), default=0)

    def clocks_mhz(self) -> list[int]:
        """Supported SM clocks at the highest memory clock; empty if it cannot tell. Units: MHz."""
        try:
            memory = self.memory_mhz()
            return self._list("nvmlDeviceGetSupportedGraphicsClocks", memory) if memory else []
        except NvmlError as exc:
            if exc.unsupported:
                return []
            raise

    def _list(self, name: str, *args: int) -> list[int]:
        count = ctypes.c_uint(_MOST_CLOCKS)
        values = (ctypes.c_uint * _MOST_CLOCKS)()
        self.call(name, *args, ctypes.byref(count), values)
        return list(values[: count.value])
