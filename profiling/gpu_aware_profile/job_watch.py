"""Watch of a job's GPUs while its program runs, in a process beside it.

The program takes the place of the command that was typed, so that signals, output and exit code are
its own; a child of that process watches. Slurm kills what is left of a step as soon as its tasks
have ended, so the record is written anew after each slice, and never only at the end.

A slice has the time per iteration and the power at one SM clock. A job appends a byte to a file at
the end of each iteration. The file's size is the number of iterations, and its modification time
that of the last one; so a slice begins and ends exactly at an iteration, however rarely it is
looked at. A job that marks nothing is cut by time alone: then its power is known, and no time per
iteration.
"""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpu_aware_profile.devices.driver import Device, in_time, open_driver
from slurm_gpu_aware.bounds import MARKS
from slurm_gpu_aware.errors import DeviceError, FileFault, SourceError
from slurm_gpu_aware.files import user_name
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import SlurmJob

CLOCK_STEP_MHZ = 15  # Clocks of NVIDIA's GPUs are multiples of it, up to rounding.
_SAME_CLOCK = 0.05  # A slice whose clock varied by a larger share is of no single clock.
_MOST = 10_000
_TIMEOUT_S = 20.0
_PERIOD_S = 0.5


class Reading(NamedTuple):
    """State of the job's GPUs on this node at one moment."""

    at_s: float  # Any steady clock.
    marks: int  # Iterations that were marked.
    marked_at_s: float  # Time of the last mark, on any clock of its own.
    sm_mhz: float | None  # Mean over the GPUs.
    energy_j: float | None  # Sum of the GPUs' counters; None: one has no counter.
    power_w: float | None  # Sum over the GPUs at this moment.


class Slice(NamedTuple):
    """A part of the run."""

    duration_s: float
    iterations: int  # 0: none was marked.
    time_s: float | None  # Time of one iteration.
    power_w: float | None  # Mean of all GPUs of the node together.
    sm_mhz: float | None  # None: not known, or it changed within the slice.


class Slices:
    """Cuts readings into slices of at least ``length_s``; at most 10,000, then they are longer."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._open: list[Reading] = []
        self._found: list[Slice] = []

    def add(self, reading: Reading) -> None:
        """Take the next reading."""
        first = self._open[0] if self._open else None
        if first is not None and first.marks == 0 < reading.marks:
            # What came before the first iteration is the start of the program.
            self._open, self._found = [], []
        self._open.append(reading)
        begin = self._open[0]
        if reading.at_s - begin.at_s < self._length_s:
            return
        if begin.marks and reading.marks == begin.marks:
            return  # in the middle of a long iteration
        self._found.append(_slice(self._open))
        self._open = [reading]
        if len(self._found) == _MOST:
            self._length_s *= 2.0
            del self._found[::2]

    def found(self) -> list[Slice]:
        """The slices so far, oldest first; what is left at the end is none."""
        return list(self._found)


def _slice(readings: list[Reading]) -> Slice:
    begin, end = readings[0], readings[-1]
    lasted = end.at_s - begin.at_s
    iterations = end.marks - begin.marks
    worked = end.marked_at_s - begin.marked_at_s
    clocks = [one.sm_mhz for one in readings if one.sm_mhz is not None]
    mean = statistics.fmean(clocks) if clocks else None
    steady = mean and max(clocks) - min(clocks) <= _SAME_CLOCK * mean
    return Slice(
        lasted,
        iterations,
        worked / iterations if iterations and worked > 0.0 else None,
        _power_w(readings, lasted),
        mean if steady else None,
    )


def _power_w(readings: list[Reading], lasted: float) -> float | None:
    first, last = readings[0].energy_j, readings[-1].energy_j
    if first is not None and last is not None and last > first:
        return (last - first) / lasted
    known = [one.power_w for one in readings if one.power_w is not None]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class AtClock:
    """What a job does at one clock: medians over its slices there."""

    clock_mhz: int
    slices: int
    iterations: int
    time_s: float | None
    power_w: float | None


def by_clock(slices: Iterable[Slice]) -> list[AtClock]:
    """Slices of one clock together, lowest clock first; those without a steady clock are left out.

    Where some slices have iterations, those without any (a pause, a checkpoint) do not count.
    """
    known = [one for one in slices if one.sm_mhz is not None]
    if any(one.iterations for one in known):
        known = [one for one in known if one.iterations]
    groups: dict[int, list[Slice]] = {}
    for one in known:
        clock = CLOCK_STEP_MHZ * round((one.sm_mhz or 0.0) / CLOCK_STEP_MHZ)
        groups.setdefault(clock, []).append(one)
    return [
        AtClock(
            clock,
            len(own),
            sum(one.iterations for one in own),
            _median(one.time_s for one in own),
            _median(one.power_w for one in own),
        )
        for clock, own in sorted(groups.items())
    ]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Allocation(NamedTuple):
    """The GPUs of a running job."""

    job_id: str
    gpus: tuple[int, ...]  # Slurm's indices on this node.
    total: int  # GPUs on all nodes.
    nodes: int


def allocation(environment: Mapping[str, str]) -> Allocation:
    """The job of this process. Raises SourceError if it is in none, or the job is another user's.

    The environment names the job, but a user can write it; so Slurm is asked once what this job
    holds, and whose it is. On an indexed node the environment would not name all GPUs, either.
    """
    number, node = environment.get("SLURM_JOB_ID", ""), environment.get("SLURMD_NODENAME", "")
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and node):
        raise SourceError("this is no job of Slurm (SLURM_JOB_ID and SLURMD_NODENAME are not set)")
    found = open_client(_TIMEOUT_S).jobs_of([number])
    job = next((one for one in found if one.raw_id == int(number)), None)
    if job is None or job.state != "RUNNING":
        raise SourceError(f"job {number} is not running")
    if job.user not in (user_name(os.getuid()), str(os.getuid())):
        raise SourceError(f"job {number} belongs to {job.user}")
    return _of(job, node)


def _of(job: SlurmJob, node: str) -> Allocation:
    shares = [share for share in job.shares if share.gpus]
    here = next((share.gpus for share in shares if share.node == node), ())
    if not here:
        raise SourceError(f"job {job.id} holds no GPU on {node}")
    return Allocation(job.id, here, sum(len(share.gpus) for share in shares), len(shares))


class Watched(NamedTuple):
    """What the watch has seen so far."""

    slices: Sequence[Slice]
    models: frozenset[str]  # Models of the GPUs, in the users' words.


def run_watched(
    argv: Sequence[str],
    gpus: Sequence[int],
    length_s: float,
    keep: Callable[[Watched], None],
    say: Callable[[str], None],
) -> NoReturn:
    """Become ``argv``, and leave a child that watches ``gpus`` (Slurm's indices) until its end.

    ``length_s``: least length of a slice. ``keep``: called in the child with all slices, after each
    new one. ``say``: tells why it could not watch. Raises SourceError if the program cannot be run.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpu-aware-job-"))
    marks = folder / "marks"
    marks.touch()
    parent = os.getpid()
    if os.fork() == 0:

        def alive() -> bool:
            return os.getppid() == parent

        try:
            _as_watcher()
            _watch(marks, gpus, Slices(length_s), keep, alive)
        except (SourceError, OSError) as exc:
            say(f"the job goes on, but is not measured: {exc}")
            while alive():  # the program writes to the file of marks all the same
                time.sleep(_PERIOD_S)
        finally:
            with suppress(OSError):
                marks.unlink()
                folder.rmdir()
            os._exit(0)
    with FileFault(argv[0], "run"):
        os.execvpe(argv[0], list(argv), {**os.environ, MARKS: str(marks)})  # noqa: S606


def _as_watcher() -> None:
    """Signals are for the program; its input, too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _watch(
    marks: Path,
    gpus: Sequence[int],
    slices: Slices,
    keep: Callable[[Watched], None],
    alive: Callable[[], bool],
) -> None:
    with open_driver() as driver:
        devices = {index: one for index, one in driver.devices() if index in gpus}
        for index in gpus:
            one = devices.get(index)
            if one is None or isinstance(one, DeviceError):
                raise one or SourceError(f"GPU {index} is not visible to the job")
        own = [one for one in devices.values() if not isinstance(one, DeviceError)]
        names = [in_time("identity", one.identity) for one in own]
        models = frozenset(name.model or name.name for name in names)
        known = 0
        while alive():
            slices.add(_reading(own, marks))
            found = slices.found()
            if len(found) != known:
                known = len(found)
                keep(Watched(found, models))
            time.sleep(_PERIOD_S)


def _reading(devices: Sequence[Device], marks: Path) -> Reading:
    """The state now. Raises DeviceError."""
    samples = [in_time("sample", device.sample) for device in devices]
    energies = [in_time("energy", device.energy_j) for device in devices]
    seen = marks.stat()
    clocks = [one.sm_mhz for one in samples if one.sm_mhz is not None]
    return Reading(
        time.monotonic(),
        seen.st_size,
        seen.st_mtime_ns / 1e9,
        statistics.fmean(clocks) if clocks else None,
        _sum(energies),
        _sum([one.power_w for one in samples]),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
