"""NVIDIA GPUs as the probe sees them, through the layer of `slurm_gpu_aware.clocks.nvml`.

There are three index spaces. *NVML index*: position in NVML's order (PCI bus order). *Minor
number*: N of ``/dev/nvidiaN``; all other modules call it ``index``, because gres.conf lists the
device files and Slurm's IDX is the minor number. *CUDA order* is not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from gpu_aware_profile.devices.driver import EccErrors, Event, Identity, PeerLink, Sample, in_time
from gpu_aware_profile.devices.power_profiles import offered_profiles, requested_profiles
from slurm_gpu_aware.clocks import nvml
from slurm_gpu_aware.clocks.nvml import NvmlError
from slurm_gpu_aware.errors import DeviceError
from slurm_gpu_aware.model.hardware_graph import NVLINK_GBPS, model_word

_INVALID_ARGUMENT = 2
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_LINK_TO_GPU, _LINK_TO_CPU = 0, 1  # nvmlIntNvLinkDeviceType_t; any other end is a switch.
_MOST_LINKS = 18
_MOST_PROCESSES = 256
_MASK_WORDS = 64  # CPU masks of 4096 CPUs, in words of 64 bits.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in nvidia-smi's words (``nvidia-smi topo -m``); 0: one board."""
_NVLINK_VERSIONS = ("1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0")
"""Words of nvmlNvlinkVersion_t from 1 on."""
_PCIE_GBPS_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCIe generation -> GB/s of one lane in one direction, after line coding."""
_REASONS = {
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""nvmlClocksEventReasons; that of an idle GPU (1) is left out."""
_XIDS = {
    13: "exception of a kernel",
    31: "memory page fault",
    43: "a kernel stopped the GPU's processing",
    48: "double bit ECC error",
    63: "row remapping, or a page was retired",
    64: "row remapping, or retiring a page, failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
}
"""What NVIDIA's table of XID errors says of the frequent ones."""
_PROCESS_KILLED = 45
"""The driver removed the channels of a process that was killed, by us or by Slurm. An error that
kills a process is an event of its own."""
OF_PROGRAMS = frozenset((11, 13, 25, 31, 43, _PROCESS_KILLED, 68, 69, 109, 137))
"""XIDs that a faulty program causes on a well GPU.

13, 31, 43, 45, 68 and 109 are those that NVIDIA's k8s-device-plugin ignores
(``getDisabledHealthCheckXids`` of ``internal/rm/health.go``). For 11, 25, 69 and 137 NVIDIA's
catalogue says to check the application:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. It says so for 32 and 80, too,
but 32 comes from the PCIe bus by its text, and a wrong checksum (80) is no fault of a program.
After 109 it wants the GPU reset: one that needs that fails the next probe.
"""


def cpu_list(cpus: list[int]) -> str:
    """Return ascending CPU numbers as Linux writes them: ``0-3,8``."""
    parts: list[str] = []
    start = 0
    for i, cpu in enumerate(cpus):
        if i + 1 == len(cpus) or cpus[i + 1] != cpu + 1:
            parts.append(str(cpu) if start == i else f"{cpus[start]}-{cpu}")
            start = i + 1
    return ",".join(parts)


def xid_words(xid: int) -> str:
    """``XID 48: double bit ECC error``"""
    return f"XID {xid}: {_XIDS[xid]}" if xid in _XIDS else f"XID {xid}"


def reason_words(mask: int) -> frozenset[str]:
    """Words of the reasons for a lower clock."""
    return frozenset(word for bit, word in _REASONS.items() if mask & bit)


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy_id", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("bus_id", ctypes.c_char * 32),
    )


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("instances", ctypes.c_uint * 2),
    )


class Nvml(nvml.Nvml):
    """`devices.Driver` of NVIDIA, open inside its ``with`` block."""

    visible_variable = "CUDA_VISIBLE_DEVICES"

    def __enter__(self) -> Nvml:
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(DeviceError):  # a GPU may hang it
            in_time("nvmlShutdown", lambda: self.call("nvmlShutdown"))

    def versions(self) -> Mapping[str, Callable[[], str]]:
        """Version of the driver, and the newest CUDA version that it supports."""
        return {
            "driver": lambda: self.text("nvmlSystemGetDriverVersion"),
            "cuda": lambda: _cuda_version(self.number("nvmlSystemGetCudaDriverVersion")),
        }

    def devices(self) -> Iterator[tuple[int, NvmlDevice | DeviceError]]:
        """Yield (minor number, GPU), or (-1, error) for a GPU that cannot be opened.

        Raises DeviceError if the GPUs cannot be counted.
        """
        for gpu in self.gpus(NvmlDevice):
            yield -1 if isinstance(gpu, DeviceError) else gpu.minor, gpu

    @contextmanager
    def events(self) -> Iterator[Callable[[], list[Event]]]:
        """Register for the XID errors of all GPUs; a failed registration is an event, too."""
        handles: dict[int | None, str] = {}
        first: list[Event] = []
        event_set = ctypes.c_void_p()
        try:
            self.call("nvmlEventSetCreate", ctypes.byref(event_set))
        except DeviceError as exc:
            failed = [] if exc.unsupported else [_failed(exc)]
            yield lambda: failed
            return
        try:
            for _, device in self.devices():
                if isinstance(device, DeviceError):
                    continue
                try:
                    handles[device.handle.value] = device.pci()
                    device.call("nvmlDeviceRegisterEvents", nvml.XID_EVENTS, event_set)
                except DeviceError as exc:
                    if not exc.unsupported:
                        first.append(_failed(exc, handles.get(device.handle.value, "")))

            def newest() -> list[Event]:
                found = [*first, *self._waiting(event_set, handles)]
                first.clear()
                return found

            yield newest
        finally:
            with suppress(DeviceError):  # what was measured counts
                in_time("nvmlEventSetFree", lambda: self.call("nvmlEventSetFree", event_set))

    def _waiting(self, event_set: Any, handles: Mapping[int | None, str]) -> Iterator[Event]:
        """The events that have happened, without waiting for others."""
        try:
            while (event := self.next_xid(event_set, 0)) is not None:
                device, xid = event
                if xid != _PROCESS_KILLED:
                    yield Event(handles.get(device, ""), "xid", xid_words(xid))
        except NvmlError as exc:  # it fails if any GPU is lost
            yield _failed(exc)


def _failed(error: DeviceError, pci: str = "") -> Event:
    return Event(pci, error.call, error.reason, critical=False)


def _cuda_version(number: int) -> str:
    """12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


class NvmlDevice(nvml.Gpu):
    """`devices.Device` of NVIDIA."""

    @property
    def details(self) -> Mapping[str, Callable[[], Any]]:
        """Field of the GPU's record -> query. None: not supported."""
        return {
            "numa": lambda: next(iter(self.bits("nvmlDeviceGetMemoryAffinity", 0)), None),
            "cpus": lambda: cpu_list(self.bits("nvmlDeviceGetCpuAffinity")) or None,
            "memory_mb": self._memory_mb,
            "clocks_mhz": lambda: sorted(set(self.clocks_mhz()), reverse=True),
            "max_clock_mhz": lambda: self.maybe("nvmlDeviceGetMaxClockInfo", _SM),
            "default_clock_mhz": lambda: self.maybe("nvmlDeviceGetDefaultApplicationsClock", _SM),
            "power_limit_w": lambda: self._thousandths("nvmlDeviceGetPowerManagementLimit"),
            "min_limit_w": self._min_limit_w,
            "power_profiles": lambda: offered_profiles(self),
            "requested_profiles": lambda: requested_profiles(self),
            "temperature_c": lambda: self.maybe("nvmlDeviceGetTemperature", 0),
        }

    @property
    def health(self) -> Mapping[str, Callable[[], Any]]:
        """Field of `GpuHealth` -> query. None: not supported."""
        return {
            "pcie_gen": lambda: self.maybe("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_gen_most": lambda: self.maybe("nvmlDeviceGetMaxPcieLinkGeneration"),
            "pcie_gen_gpu": lambda: self.maybe("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
            "pcie_lanes": lambda: self.maybe("nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_lanes_most": lambda: self.maybe("nvmlDeviceGetMaxPcieLinkWidth"),
            "performance_state": lambda: self.maybe("nvmlDeviceGetPerformanceState"),
            "active_nvlinks": self._active_nvlinks,
            "ecc_now": lambda: self.maybe("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            "remapped": lambda: self._remapped()[0],
            "remap_pending": lambda: self._remapped()[1],
            "remap_failed": lambda: self._remapped()[2],
            "throttle": self._throttle,
        }

    def identity(self) -> Identity:
        """UUID, product name, model and PCI id."""
        name = self.text("nvmlDeviceGetName")
        return Identity(self.text("nvmlDeviceGetUUID"), name, model_word(name), self.pci())

    def sample(self) -> Sample:
        """Clocks, power, temperature and reasons for a lower clock, at this moment."""
        mask = self.throttle_mask()
        return Sample(
            self.maybe("nvmlDeviceGetClockInfo", _SM),
            self.maybe("nvmlDeviceGetClockInfo", _MEMORY),
            self._thousandths("nvmlDeviceGetPowerUsage"),
            self.maybe("nvmlDeviceGetTemperature", 0),
            reason_words(mask or 0),
        )

    def _throttle(self) -> str | None:
        mask = self.throttle_mask()
        return None if mask is None else " ".join(sorted(reason_words(mask)))

    def _active_nvlinks(self) -> int | None:
        """None: this model has none."""
        found = 0
        for link in range(_MOST_LINKS):
            try:
                found += self.number("nvmlDeviceGetNvLinkState", link) != 0
            except NvmlError as exc:
                if exc.unsupported and link == 0:
                    return None
                if exc.unsupported or exc.code == _INVALID_ARGUMENT:
                    break
                raise
        return found

    def _remapped(self) -> tuple[int | None, bool | None, bool | None]:
        """(replaced rows, whether one waits, whether one failed)."""
        rows = [ctypes.c_uint() for _ in range(4)]  # the first: after corrected errors
        if self.tried("nvmlDeviceGetRemappedRows", *map(ctypes.byref, rows)):
            return rows[1].value, bool(rows[2].value), bool(rows[3].value)
        pending = self.maybe("nvmlDeviceGetRetiredPagesPendingStatus")
        return None, None if pending is None else bool(pending), None

    def processes(self) -> list[int]:
        """Processes that compute on it, at most ``_MOST_PROCESSES``; empty: none, or no answer."""
        count = ctypes.c_uint(_MOST_PROCESSES)
        found = (_ProcessInfo * _MOST_PROCESSES)()
        if not self.tried("nvmlDeviceGetComputeRunningProcesses_v3", ctypes.byref(count), found):
            return []
        return [int(one.pid) for one in found[: count.value]]

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded. Units: J."""
        return self._thousandths("nvmlDeviceGetTotalEnergyConsumption")

    def ecc_errors(self) -> EccErrors:
        """Memory errors over the GPU's life."""
        counts = (
            self.maybe("nvmlDeviceGetTotalEccErrors", kind, _AGGREGATE)
            for kind in (_CORRECTED, _UNCORRECTED)
        )
        return EccErrors(*counts)

    def _min_limit_w(self) -> float | None:
        try:
            return self.limit_range_mw()[0] / 1000.0
        except DeviceError as exc:
            if not exc.unsupported:
                raise
            return None

    def _thousandths(self, name: str) -> float | None:
        value = self.maybe(name)
        return None if value is None else value / 1000.0

    def pci(self) -> str:
        """``00000000:06:00.0``"""
        return self._pci_of("nvmlDeviceGetPciInfo_v3")

    def _pci_of(self, name: str, *args: object) -> str:
        found = _PciInfo()
        self.call(name, *args, ctypes.byref(found))
        return str(found.bus_id.decode(errors="replace")).upper()

    def _memory_mb(self) -> int:
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        self.call("nvmlDeviceGetMemoryInfo", memory)
        return int(memory[0]) >> 20

    def bits(self, name: str, *args: object) -> list[int]:
        """Positions of the set bits of a mask; empty: not supported."""
        words = (ctypes.c_ulonglong * _MASK_WORDS)()
        self.tried(name, _MASK_WORDS, words, *args)
        return [
            64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1
        ]

    def pcie_gbps(self) -> float | None:
        """Nominal bandwidth of the GPU's PCIe link in one direction. Units: GB/s."""
        generation = self.maybe("nvmlDeviceGetMaxPcieLinkGeneration")
        lanes = self.maybe("nvmlDeviceGetMaxPcieLinkWidth")
        if not generation or not lanes:
            return None
        per_lane = _PCIE_GBPS_PER_LANE.get(generation, _PCIE_GBPS_PER_LANE[6])
        return round(per_lane * lanes, 2)

    def ancestor(self, other: NvmlDevice) -> str:
        """PCIe level that joins two GPUs: PIX, PXB, PHB, NODE or SYS."""
        level = self.number("nvmlDeviceGetTopologyCommonAncestor", other.handle)
        return _LEVELS.get(level, "SYS")

    def peer_links(self) -> list[PeerLink]:
        """Active NVLinks; empty: the GPU has none. Those to a CPU (POWER9) join no GPUs."""
        links = []
        for link in range(_MOST_LINKS):
            try:
                if not self.number("nvmlDeviceGetNvLinkState", link):
                    continue
            except NvmlError as exc:
                if exc.unsupported or exc.code == _INVALID_ARGUMENT:  # beyond the model's last link
                    break
                raise
            end = self.maybe("nvmlDeviceGetNvLinkRemoteDeviceType", link)
            if end == _LINK_TO_CPU:
                continue
            to_gpu = end in (None, _LINK_TO_GPU)
            remote = self._pci_of("nvmlDeviceGetNvLinkRemotePciInfo_v2", link) if to_gpu else None
            version = self.maybe("nvmlDeviceGetNvLinkVersion", link) or 0
            word = dict(enumerate(_NVLINK_VERSIONS, 1)).get(version)
            generation = int(word[0]) if word else 4
            links.append(PeerLink("NV", remote, NVLINK_GBPS[generation], word))
        return links
