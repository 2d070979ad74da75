"""Typed read access to NVIDIA's management library; the only module that calls ``pynvml``.

There are three index spaces. *NVML index*: position in NVML's order (PCI bus order). *Minor
number*: N of ``/dev/nvidiaN``; all other modules call it ``index``, because gres.conf lists the
device files and Slurm's IDX is the minor number. *CUDA order* is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from slurm_gpu_aware.errors import SourceError, not_installed

__all__ = ["DETAILS", "Device", "NvLink", "Nvml", "NvmlError", "cpu_list"]

_NOT_SUPPORTED = frozenset({3, 13, 26})
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND of an older driver, DEPRECATED of a newer one."""
_MASK_WORDS = 64
"""CPU masks of 4096 CPUs, in words of 64 bits."""
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in nvidia-smi's words (``nvidia-smi topo -m``); 0: one board."""
_NVLINK_GBPS = {1: 20.0, 7: 50.0, 8: 100.0}
"""nvmlNvlinkVersion_t -> GB/s of one link in one direction; NVLink 2 to 4 (2..6): 25."""
_NVLINK_VERSIONS = ("1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0")
"""Words of nvmlNvlinkVersion_t from 1 on."""
_PCIE_GBPS_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCIe generation -> GB/s of one lane in one direction, after line coding."""


class NvmlError(SourceError):
    """A call to NVML failed.

    ``call``: NVML's function; ``reason``: its error text; ``code``: its error number (None: the
    Python package is missing).
    """

    def __init__(self, call: str, reason: str, code: int | None = None) -> None:
        super().__init__(f"{call}: {reason}")
        self.call = call
        self.reason = reason
        self.code = code
        self.unsupported = code in _NOT_SUPPORTED
        """Whether the device or driver does not support the call."""


class NvLink(NamedTuple):
    """One active NVLink of a GPU."""

    remote_pci: str | None
    """PCI id of the GPU at the other end; None: a switch."""
    gbps: float
    """One direction, nominal. Units: GB/s."""
    version: str | None
    """``3.0``"""


def cpu_list(cpus: list[int]) -> str:
    """Return ascending CPU numbers as Linux writes them: ``0-3,8``."""
    parts: list[str] = []
    start = 0
    for i, cpu in enumerate(cpus):
        if i + 1 == len(cpus) or cpus[i + 1] != cpu + 1:
            parts.append(str(cpu) if start == i else f"{cpus[start]}-{cpu}")
            start = i + 1
    return ",".join(parts)


class Nvml:
    """A connection to the driver, as a context manager. A fork must not share it."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise NvmlError("import pynvml", not_installed("nvidia-ml-py", "gpu")) from None
        self._api = pynvml
        self.max_links = int(getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18))
        self.call("nvmlInit")

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.nvmlShutdown()

    def call(self, name: str, *args: Any) -> Any:
        """Call an NVML function by name; bytes are decoded. Raises NvmlError."""
        try:
            value = getattr(self._api, name)(*args)
        except self._api.NVMLError as exc:
            raise NvmlError(name, _words(exc), int(exc.value)) from None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def devices(self) -> Iterator[tuple[int, Device | NvmlError]]:
        """Yield (minor number, GPU), or (-1, error) for a GPU that cannot be opened.

        Raises NvmlError if the GPUs cannot be counted.
        """
        for nvml_index in range(int(self.call("nvmlDeviceGetCount"))):
            try:
                device = Device(self, self.call("nvmlDeviceGetHandleByIndex", nvml_index))
                yield int(device.call("nvmlDeviceGetMinorNumber")), device
            except NvmlError as exc:
                yield -1, exc


def _words(error: Any) -> str:
    text = str(error)
    # The text of a code that the binding does not know is the repr of a bytes object.
    return text[2:-1] if text.startswith("b'") and text.endswith("'") else text


class Device:
    """One GPU. Every query asks the driver and raises NvmlError on failure."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def call(self, name: str, *args: Any) -> Any:
        """Call an NVML function of the GPU."""
        return self._nvml.call(name, self._handle, *args)

    def maybe(self, name: str, *args: Any) -> Any:
        """Like :meth:`call`; None: this GPU or driver does not support it."""
        try:
            return self.call(name, *args)
        except NvmlError as exc:
            if exc.unsupported:
                return None
            raise

    def pci(self) -> str:
        """``00000000:06:00.0``"""
        return _pci(self.call("nvmlDeviceGetPciInfo"))

    def bits(self, name: str, *args: Any) -> list[int]:
        """Positions of the set bits of a mask; empty: not supported."""
        words = self.maybe(name, _MASK_WORDS, *args) or ()
        return [
            64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1
        ]

    def clocks_mhz(self) -> list[int]:
        """Supported SM clocks at the highest memory clock, descending. Units: MHz."""
        memory = self.maybe("nvmlDeviceGetSupportedMemoryClocks")
        if not memory:
            return []
        clocks = self.maybe("nvmlDeviceGetSupportedGraphicsClocks", max(memory))
        return sorted({int(c) for c in clocks or ()}, reverse=True)

    def pcie_gbps(self) -> float | None:
        """Nominal bandwidth of the GPU's PCIe link in one direction. Units: GB/s."""
        generation = self.maybe("nvmlDeviceGetMaxPcieLinkGeneration")
        lanes = self.maybe("nvmlDeviceGetMaxPcieLinkWidth")
        if not generation or not lanes:
            return None
        per_lane = _PCIE_GBPS_PER_LANE.get(int(generation), _PCIE_GBPS_PER_LANE[6])
        return round(per_lane * int(lanes), 2)

    def ancestor(self, other: Device) -> str:
        """PCIe level that joins two GPUs: PIX, PXB, PHB, NODE or SYS."""
        level = int(self.call("nvmlDeviceGetTopologyCommonAncestor", other._handle))
        return _LEVELS.get(level, "SYS")

    def nvlinks(self) -> list[NvLink]:
        """Active NVLinks; empty: the GPU has none."""
        links = []
        for link in range(self._nvml.max_links):
            try:
                if not self.call("nvmlDeviceGetNvLinkState", link):
                    continue
            except NvmlError as exc:
                if exc.unsupported or exc.code == 2:  # beyond the last link of this model
                    break
                raise
            version = int(self.maybe("nvmlDeviceGetNvLinkVersion", link) or 0)
            word = dict(enumerate(_NVLINK_VERSIONS, 1)).get(version)
            links.append(NvLink(self._remote(link), _NVLINK_GBPS.get(version, 25.0), word))
        return links

    def _remote(self, link: int) -> str | None:
        kind = self.maybe("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if kind is not None and int(kind) != 0:
            return None
        return _pci(self.call("nvmlDeviceGetNvLinkRemotePciInfo", link))


def _pci(info: Any) -> str:
    text = info.busId
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).upper()


def _power_limit_w(gpu: Device) -> float | None:
    milliwatts = gpu.maybe("nvmlDeviceGetPowerManagementLimit")
    return None if milliwatts is None else int(milliwatts) / 1000.0


DETAILS: Mapping[str, Callable[[Device], Any]] = {
    "numa": lambda gpu: next(iter(gpu.bits("nvmlDeviceGetMemoryAffinity", 0)), None),
    "cpus": lambda gpu: cpu_list(gpu.bits("nvmlDeviceGetCpuAffinity")) or None,
    "memory_mb": lambda gpu: gpu.call("nvmlDeviceGetMemoryInfo").total >> 20,
    "clocks_mhz": Device.clocks_mhz,
    "max_clock_mhz": lambda gpu: gpu.maybe("nvmlDeviceGetMaxClockInfo", 1),
    "default_clock_mhz": lambda gpu: gpu.maybe("nvmlDeviceGetDefaultApplicationsClock", 1),
    "power_limit_w": _power_limit_w,
    "temperature_c": lambda gpu: gpu.maybe("nvmlDeviceGetTemperature", 0),
}
"""Field of a GPU's record -> query. None: not supported."""
