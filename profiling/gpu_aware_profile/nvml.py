"""Typed read access to NVIDIA's management library; the only module that calls ``pynvml``.

``pynvml`` comes from the distribution ``nvidia-ml-py`` (extra ``gpu``). It is imported when an
:class:`Nvml` is opened. The hooks set clocks (`clocks.nvml`).

There are three index spaces. *NVML index*: position in NVML's order (PCI bus order). *Minor
number*: N of ``/dev/nvidiaN``; all other modules call it ``index``, because gres.conf lists the
device files and Slurm's IDX is the minor number. *CUDA order* is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from slurm_gpu_aware.errors import SourceError, not_installed

__all__ = ["Device", "NvLink", "Nvml", "NvmlError", "cpu_list"]

_NOT_SUPPORTED = frozenset({3, 13, 26})
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND of an older driver, DEPRECATED of a newer one."""
_MASK_WORDS = 64
"""CPU masks of 4096 CPUs, in words of 64 bits."""
_LEVELS = {0: "SAME", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in nvidia-smi's words (``nvidia-smi topo -m``)."""
_NVLINK_GBPS = {1: 20.0, 7: 50.0, 8: 100.0}
"""nvmlNvlinkVersion_t -> GB/s of one link in one direction; NVLink 2 to 4 (2..6): 25."""
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

    def maybe(self, name: str, *args: Any) -> Any:
        """Like :meth:`call`; None: the device does not support it."""
        try:
            return self.call(name, *args)
        except NvmlError as exc:
            if exc.unsupported:
                return None
            raise

    def driver(self) -> str:
        """Driver version, ``550.54.15``."""
        return str(self.call("nvmlSystemGetDriverVersion"))

    def devices(self) -> Iterator[tuple[int, Device | NvmlError]]:
        """Yield (minor number, GPU), or (-1, error) for a GPU that cannot be opened.

        Raises NvmlError if the GPUs cannot be counted.
        """
        for nvml_index in range(int(self.call("nvmlDeviceGetCount"))):
            try:
                device = Device(self, self.call("nvmlDeviceGetHandleByIndex", nvml_index))
                yield device.minor, device
            except NvmlError as exc:
                yield -1, exc


def _words(error: Any) -> str:
    text = str(error)
    # The text of a code that the binding does not know is the repr of a bytes object.
    return text[2:-1] if text.startswith("b'") and text.endswith("'") else text


class Device:
    """One GPU. Every method asks the driver and raises NvmlError on failure.

    None: this GPU or driver does not support the query.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def _call(self, name: str, *args: Any) -> Any:
        return self._nvml.call(name, self._handle, *args)

    def _maybe(self, name: str, *args: Any) -> Any:
        return self._nvml.maybe(name, self._handle, *args)

    @cached_property
    def minor(self) -> int:
        """N of ``/dev/nvidiaN``: Slurm's index."""
        return int(self._call("nvmlDeviceGetMinorNumber"))

    @cached_property
    def uuid(self) -> str:
        """``GPU-...``"""
        return str(self._call("nvmlDeviceGetUUID"))

    @cached_property
    def name(self) -> str:
        """Product name."""
        return str(self._call("nvmlDeviceGetName"))

    @cached_property
    def pci(self) -> str:
        """``00000000:06:00.0``"""
        return _pci(self._call("nvmlDeviceGetPciInfo"))

    def memory_mb(self) -> int:
        """Device memory. Units: MiB."""
        return int(self._call("nvmlDeviceGetMemoryInfo").total) >> 20

    def numa(self) -> int | None:
        """NUMA node nearest to the GPU."""
        nodes = _bits(self._maybe("nvmlDeviceGetMemoryAffinity", _MASK_WORDS, 0))
        return nodes[0] if nodes else None

    def cpus(self) -> str | None:
        """CPUs near the GPU, ``0-3,8``."""
        cpus = _bits(self._maybe("nvmlDeviceGetCpuAffinity", _MASK_WORDS))
        return cpu_list(cpus) if cpus else None

    def clocks_mhz(self) -> list[int]:
        """Supported SM clocks at the highest memory clock, descending. Units: MHz."""
        memory = self._maybe("nvmlDeviceGetSupportedMemoryClocks")
        if not memory:
            return []
        clocks = self._maybe("nvmlDeviceGetSupportedGraphicsClocks", max(memory))
        return sorted({int(c) for c in clocks or ()}, reverse=True)

    def max_clock_mhz(self) -> int | None:
        """Highest SM clock. Units: MHz."""
        return _whole(self._maybe("nvmlDeviceGetMaxClockInfo", 1))

    def default_clock_mhz(self) -> int | None:
        """Default SM clock of applications. Units: MHz."""
        return _whole(self._maybe("nvmlDeviceGetDefaultApplicationsClock", 1))

    def power_limit_w(self) -> float | None:
        """Board power limit in force. Units: W."""
        return _scaled(self._maybe("nvmlDeviceGetPowerManagementLimit"))

    def temperature_c(self) -> int | None:
        """Temperature of the chip. Units: degrees C."""
        return _whole(self._maybe("nvmlDeviceGetTemperature", 0))

    def pcie_gbps(self) -> float | None:
        """Nominal bandwidth of the GPU's PCIe link in one direction. Units: GB/s."""
        generation = self._maybe("nvmlDeviceGetMaxPcieLinkGeneration")
        lanes = self._maybe("nvmlDeviceGetMaxPcieLinkWidth")
        if not generation or not lanes:
            return None
        per_lane = _PCIE_GBPS_PER_LANE.get(int(generation), _PCIE_GBPS_PER_LANE[6])
        return round(per_lane * int(lanes), 2)

    def ancestor(self, other: Device) -> str:
        """PCIe level that joins two GPUs: PIX, PXB, PHB, NODE or SYS (SAME: one board)."""
        level = int(self._call("nvmlDeviceGetTopologyCommonAncestor", other._handle))
        return _LEVELS.get(level, "SYS")

    def nvlinks(self) -> list[NvLink]:
        """Active NVLinks; empty: the GPU has none."""
        links = []
        for link in range(self._nvml.max_links):
            try:
                if not self._call("nvmlDeviceGetNvLinkState", link):
                    continue
            except NvmlError as exc:
                if exc.unsupported or exc.code == 2:  # beyond the last link of this model
                    break
                raise
            version = int(self._maybe("nvmlDeviceGetNvLinkVersion", link) or 0)
            links.append(NvLink(self._remote(link), _NVLINK_GBPS.get(version, 25.0)))
        return links

    def _remote(self, link: int) -> str | None:
        kind = self._maybe("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if kind is not None and int(kind) != 0:
            return None
        return _pci(self._call("nvmlDeviceGetNvLinkRemotePciInfo", link))


def _pci(info: Any) -> str:
    text = info.busId
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).upper()


def _bits(words: Any) -> list[int]:
    return [
        64 * i + bit for i, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1
    ]


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _scaled(milli: Any) -> float | None:
    return None if milli is None else int(milli) / 1000.0
