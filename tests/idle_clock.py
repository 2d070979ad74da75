"""Time in which this machine could work: deadlines in it do not depend on other processes.

A deadline says what an idle machine needs. Where three processes want each CPU, a second counts a
third: so much can one of them do in it. Taken from ``/proc``, five times a second.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["IdleClock", "Reading", "Stopwatch", "all_end", "idle_s", "read_machine", "share"]

STEP_S = 0.2
LEAST_SHARE = 0.05
"""A second counts no less, so that each wait ends."""


@dataclass(frozen=True)
class Reading:
    """What the kernel has counted so far.

    Parameters
    ----------
    wanting : processes that run or want a CPU now, the reading one not counted.
    busy, stolen : time of all CPUs in use, and taken by a hypervisor, in clock ticks.
    disk_s : time in which some process waited for a disk, s.
    """

    wanting: int
    busy: int
    stolen: int
    disk_s: float


def read_machine() -> Reading:
    """Read ``/proc``; the wait for disks is 0 where the kernel does not tell it."""
    text = Path("/proc/stat").read_text()
    user, nice, system, _, _, irq, softirq, steal = (int(x) for x in text.split()[1:9])
    running = int(text.partition("procs_running ")[2].split()[0])
    disk_us = "0"
    with contextlib.suppress(OSError):
        disk_us = Path("/proc/pressure/io").read_text().split()[4].partition("=")[2]
    busy = user + nice + system + irq + softirq
    return Reading(max(0, running - 1), busy, steal, int(disk_us) / 1e6)


def share(before: Reading, now: Reading, took_s: float, cpus: int) -> float:
    """Part of an idle machine's speed at which a process went on between two readings."""
    # One more is there while the test waits: what it waits for
    of_cpus = min(1.0, cpus / max(1.0, now.wanting))
    wanted = now.busy - before.busy + now.stolen - before.stolen
    given = 1.0 - (now.stolen - before.stolen) / wanted if wanted > 0 else 1.0
    beside_disks = 1.0 - min(1.0, (now.disk_s - before.disk_s) / took_s)
    return max(LEAST_SHARE, of_cpus * given * beside_disks)


class IdleClock:
    """Counts from its start; `run` reads the machine meanwhile."""

    def __init__(
        self,
        read: Callable[[], Reading] = read_machine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._last, self._at, self._count = read(), clock(), 0.0

    def now(self) -> float:
        """Seconds of an idle machine since the start."""
        with self._lock:
            found, at = self._read(), self._clock()
            if (took_s := at - self._at) > 0:
                self._count += took_s * share(self._last, found, took_s, os.cpu_count() or 1)
            self._last, self._at = found, at
            return self._count

    def run(self) -> None:
        """Read the machine five times a second, for ever."""
        while True:
            time.sleep(STEP_S)
            self.now()


_CLOCK: IdleClock | None = None


def idle_s() -> float:
    """Seconds of an idle machine since the first call in this process."""
    global _CLOCK
    if _CLOCK is None:
        _CLOCK = IdleClock()
        threading.Thread(target=_CLOCK.run, daemon=True).start()
    return _CLOCK.now()


class Stopwatch:
    """How long something takes, and how long it would take on an idle machine."""

    def __init__(self) -> None:
        self._idle, self._wall = idle_s(), time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds of an idle machine since the start."""
        return idle_s() - self._idle

    @property
    def share(self) -> float:
        """Part of an idle machine's speed since the start."""
        return min(1.0, self.idle_s / max(time.monotonic() - self._wall, 0.1))

    @property
    def quiet(self) -> bool:
        """Whether this machine had next to nothing else to do since the start."""
        return self.share > 0.9


def _goes_on(pid: int) -> bool:
    """Whether a process is there; one that nothing has reaped has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def all_end(pids: Iterable[str | int]) -> bool:
    """A process that was killed ends when it runs next, which a busy machine may delay."""
    left, watch = [int(pid) for pid in pids], Stopwatch()
    while (left := [pid for pid in left if _goes_on(pid)]) and watch.idle_s < 60:
        time.sleep(0.01)
    return not left
