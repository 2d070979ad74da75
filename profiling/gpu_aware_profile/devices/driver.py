"""GPUs of this node as their driver shows them, whatever their vendor; its NICs from sysfs.

Each vendor is one module that implements `Driver` and `Device` (`nvml` for NVIDIA). Every query may
raise `DeviceError`; a value that the device does not support is None.

NICs of a node and their PCIe paths to its GPUs, from sysfs.

NVML compares GPUs with each other only. The classes are those of ``nvidia-smi topo -m``; the rule
is NCCL's: two devices below one bridge or switch are PIX, below several switches PXB, below one
host bridge PHB, on one NUMA node NODE, else SYS.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from slurm_gpu_aware.errors import DeviceError

T = TypeVar("T")
Faults = list[dict[str, Any]]  # ``errors`` of a report: calls that failed.

ANSWER_S = 5.0  # Time limit of a query during a measurement.


class NoAnswerError(DeviceError):
    """A call to the driver hangs."""

    def __init__(self, call: str) -> None:
        super().__init__(call, f"no answer within {ANSWER_S:g} s", lost=True)


class Identity(NamedTuple):
    """What never changes of a GPU."""

    uuid: str
    name: str  # The vendor's product name.
    model: str | None  # The users' word, ``v100``.
    pci: str  # ``00000000:06:00.0``


class PeerLink(NamedTuple):
    """One active link of a GPU to another GPU or to a switch, beside PCIe."""

    kind: str  # Class of the link in a report, without the count: ``NV``, ``XGMI``.
    remote_pci: str | None  # PCI id of the GPU at the other end; None: a switch.
    gbps: float  # One direction, nominal. Units: GB/s.
    version: str | None  # ``3.0``


class Sample(NamedTuple):
    """State of a GPU at one moment. None: not supported."""

    sm_mhz: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: frozenset[str]  # Reasons for a clock below the highest one, an idle GPU's aside.


class EccErrors(NamedTuple):
    """Memory errors over the GPU's life. None: not supported."""

    corrected: int | None
    uncorrected: int | None


class Event(NamedTuple):
    """A critical error that the driver reported of a GPU."""

    pci: str
    call: str  # Kind of the event: ``xid``.
    error: str
    critical: bool = True
    """Whether what the GPU computed meanwhile may be wrong; False: only this query failed."""


class Device(Protocol):
    """One GPU."""

    @property
    def details(self) -> Mapping[str, Callable[[], Any]]:
        """Field of the GPU's record -> query."""

    @property
    def health(self) -> Mapping[str, Callable[[], Any]]:
        """Field of `GpuHealth` -> query."""

    def identity(self) -> Identity: ...

    def sample(self) -> Sample: ...

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded. Units: J."""

    def ecc_errors(self) -> EccErrors: ...

    def is_divided(self) -> bool:
        """Whether it is split into instances, so that no process has all of it."""

    def peer_links(self) -> list[PeerLink]: ...

    def pcie_gbps(self) -> float | None:
        """Nominal bandwidth of the PCIe link in one direction. Units: GB/s."""

    def ancestor(self, other: Self) -> str:
        """PCIe level that joins two GPUs: PIX, PXB, PHB, NODE or SYS."""


class Driver(Protocol):
    """An open connection to a vendor's driver. Threads may share it, processes may not."""

    visible_variable: str
    """Environment variable that limits a process to the GPUs whose UUIDs it holds."""

    def versions(self) -> Mapping[str, Callable[[], str]]:
        """``driver`` and ``cuda`` of a report -> query."""

    def devices(self) -> Iterator[tuple[int, Device | DeviceError]]:
        """Yield (Slurm's index, GPU), or (-1, error) for a GPU that cannot be opened."""

    def events(self) -> AbstractContextManager[Callable[[], list[Event]]]:
        """Register for critical errors of all GPUs; the value returns those that are new."""


def in_time(call: str, ask: Callable[[], T]) -> T:
    """Return ``ask()``. Raises NoAnswerError after ``ANSWER_S``.

    A faulty GPU may hang a call forever; the thread that waits for it is left behind then.
    ``call`` names the query.
    """
    answers: list[T] = []
    errors: list[DeviceError] = []

    def run() -> None:
        try:
            answers.append(ask())
        except DeviceError as exc:
            errors.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if errors:
        raise errors[0]
    if not answers:
        raise NoAnswerError(call)
    return answers[0]


def open_driver() -> AbstractContextManager[Driver]:
    """Connect to the driver of this node's GPUs. Entering the context raises DeviceError."""
    from gpu_aware_profile.devices.nvml import Nvml

    return Nvml()


SYSFS = Path("/sys")
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}\Z")
_NET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_MOST_NICS = 64


class PciDevice(NamedTuple):
    """A PCI function and its place in the tree."""

    path: tuple[str, ...]
    """Host bridge (``pci0000:17``), bridges, the function itself (``0000:1a:00.0``)."""
    numa: int  # NUMA node; -1: not known, or the machine has one.

    @property
    def address(self) -> str:
        """``0000:1a:00.0``"""
        return self.path[-1]


def pci_device(sysfs: Path, pci: str) -> PciDevice | None:
    """Device of an address as NVML writes it (``00000000:1A:00.0``); None: sysfs has none."""
    domain, _, rest = pci.lower().partition(":")
    try:
        address = f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return None
    if not _FUNCTION.match(address):
        return None
    return _device(sysfs / "bus" / "pci" / "devices" / address)


def path_class(a: PciDevice, b: PciDevice) -> str:
    """Class of the path between two devices: PIX, PXB, PHB, NODE or SYS."""
    if a.path[0] != b.path[0]:
        return "NODE" if a.numa == b.numa else "SYS"
    common = 1
    for one, other in zip(a.path[1:], b.path[1:], strict=False):
        if one != other:
            break
        common += 1
    if common == 1:
        return "PHB"
    # Below the common bridge: a port of its switch, and the device.
    return "PIX" if max(len(a.path), len(b.path)) - common <= 2 else "PXB"


def nics(sysfs: Path, gpus: Mapping[int, str]) -> list[dict[str, Any]]:
    """NICs as records of the report, by PCI address; empty: none, or sysfs cannot be read.

    ``gpus``: index -> PCI address as NVML writes it. A NIC with InfiniBand (or RoCE) has the name
    of its InfiniBand device, as in nvidia-smi; others that of their network interface. Virtual
    functions are left out.
    """
    found = _adapters(sysfs)
    at = {index: pci_device(sysfs, pci) for index, pci in gpus.items()}
    return [
        {
            "name": name,
            "pci": nic.address,
            "numa": nic.numa,
            "gpus": [
                {"index": index, "class": path_class(nic, gpu)}
                for index, gpu in at.items()
                if gpu is not None
            ],
            "nics": [
                {"name": other, "class": path_class(nic, peer)}
                for other, peer in found.items()
                if other != name
            ],
        }
        for name, nic in found.items()
    ]


def _adapters(sysfs: Path) -> dict[str, PciDevice]:
    """Name -> device, one name for each PCI function, by PCI address."""
    by_address: dict[str, tuple[str, PciDevice]] = {}
    for kind in ("infiniband", "net"):
        for entry in _entries(sysfs / "class" / kind):
            if not _NET.match(entry.name) or (entry / "device" / "physfn").exists():
                continue
            device = _device(entry / "device")
            if device is not None:
                by_address.setdefault(device.address, (entry.name, device))
    return dict(by_address[address] for address in sorted(by_address)[:_MOST_NICS])


def _entries(folder: Path) -> Iterable[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return ()


def _device(link: Path) -> PciDevice | None:
    """PCI function behind a link of sysfs, also of a virtio device on it; None: another bus."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    if not _FUNCTION.match(target.name):
        target = target.parent
    parts = target.parts
    bridge = next((i for i, part in enumerate(parts) if _HOST_BRIDGE.match(part)), len(parts))
    path = parts[bridge:]
    if len(path) < 2 or not all(_FUNCTION.match(part) for part in path[1:]):
        return None
    try:
        numa = int((target / "numa_node").read_text())
    except (OSError, ValueError):
        numa = -1
    return PciDevice(path, max(numa, -1))
