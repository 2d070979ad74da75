"""GPUs of this node as their driver shows them, whatever their vendor.

Each vendor is one module that implements `Driver` and `Device` (`nvml` for NVIDIA). Every query may
raise `DeviceError`; a value that the device does not support is None.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from slurm_gpu_aware.errors import DeviceError

T = TypeVar("T")
Faults = list[dict[str, Any]]
"""``errors`` of a report: calls that failed."""

ANSWER_S = 5.0
"""Time limit of a query during a measurement."""


class NoAnswerError(DeviceError):
    """A call to the driver hangs."""

    def __init__(self, call: str) -> None:
        super().__init__(call, f"no answer within {ANSWER_S:g} s", lost=True)


class Identity(NamedTuple):
    """What never changes of a GPU."""

    uuid: str
    name: str
    """The vendor's product name."""
    model: str | None
    """The users' word, ``v100``."""
    pci: str
    """``00000000:06:00.0``"""


class PeerLink(NamedTuple):
    """One active link of a GPU to another GPU or to a switch, beside PCIe."""

    kind: str
    """Class of the link in a report, without the count: ``NV``, ``XGMI``."""
    remote_pci: str | None
    """PCI id of the GPU at the other end; None: a switch."""
    gbps: float
    """One direction, nominal. Units: GB/s."""
    version: str | None
    """``3.0``"""


class Sample(NamedTuple):
    """State of a GPU at one moment. None: not supported."""

    sm_mhz: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: frozenset[str]
    """Reasons for a clock below the highest one, an idle GPU's aside."""


class EccErrors(NamedTuple):
    """Memory errors over the GPU's life. None: not supported."""

    corrected: int | None
    uncorrected: int | None


class Event(NamedTuple):
    """A critical error that the driver reported of a GPU."""

    pci: str
    call: str
    """Kind of the event: ``xid``."""
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
