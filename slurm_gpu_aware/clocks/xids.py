"""XID errors that the driver reports while jobs run.

NVML tells of them only who waits, and needs no root for it. A child process waits, as a faulty GPU
may hang its call forever. Errors that happen while no child waits are not seen.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from slurm_gpu_aware.clocks import nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_WAIT_MS = 5000
_AGAIN_S = 60.0
"""A child that has ended, such as on a node without a driver, is started again after this time."""
_PR_SET_PDEATHSIG = 1
_MOST_FILES = 65536
_READ_BYTES = 4096


class Xids:
    """The errors of all GPUs since the last question; use as a context manager."""

    def __init__(self) -> None:
        self._child, self._reader = 0, -1
        self._rest = b""
        self._started_at = 0.0

    def __enter__(self) -> Xids:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child:
            os.kill(self._child, signal.SIGKILL)

    def newest(self) -> list[tuple[int, int]]:
        """(GPU by minor number, XID) of the errors since the last call; never waits."""
        text = self._rest
        try:
            while part := os.read(self._reader, _READ_BYTES):
                text += part
            self._start_again()
        except BlockingIOError:
            pass
        *lines, self._rest = text.split(b"\n")
        return [(int(gpu), int(xid)) for gpu, xid in (line.split() for line in lines)]

    def _start(self) -> None:
        self._started_at = time.monotonic()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            _listen(writer, parent)
        os.close(writer)

    def _start_again(self) -> None:
        """Start a new child if the old one is gone, and not too soon."""
        if self._child and os.waitpid(self._child, os.WNOHANG)[0]:
            self._child = 0
        if not self._child and time.monotonic() - self._started_at >= _AGAIN_S:
            os.close(self._reader)
            self._start()


def _listen(writer: int, parent: int) -> NoReturn:
    """Write ``GPU XID`` lines until the driver fails or the parent ends."""
    try:
        # The parent's locks must end with it, even if a call hangs here.
        os.closerange(3, writer)
        os.closerange(writer + 1, _MOST_FILES)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with nvml.Nvml() as driver:
            events = ctypes.c_void_p()
            driver.call("nvmlEventSetCreate", ctypes.byref(events))
            minors: dict[int | None, int] = {}
            for gpu in driver.gpus(nvml.Gpu):
                if isinstance(gpu, nvml.Gpu):
                    minors[gpu.handle.value] = gpu.minor
                    gpu.call("nvmlDeviceRegisterEvents", nvml.XID_EVENTS, events)
            while os.getppid() == parent:
                event = driver.next_xid(events, _WAIT_MS)
                if event is not None and event[0] in minors:
                    os.write(writer, b"%d %d\n" % (minors[event[0]], event[1]))
    finally:
        os._exit(0)
