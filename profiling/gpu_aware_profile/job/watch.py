"""Watch of a job's GPUs while its program runs, in a process beside it.

The program takes the place of the command that was typed, so that signals, output and exit code are
its own; a child of that process watches. Slurm kills what is left of a step as soon as its tasks
have ended, so the record is written anew after each slice, and never only at the end.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpu_aware_profile.devices.driver import Device, in_time, open_driver
from gpu_aware_profile.job.slices import Reading, Slice, Slices
from slurm_gpu_aware.errors import DeviceError, SourceError
from slurm_gpu_aware.names import MARKS
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import SlurmJob

_TIMEOUT_S = 20.0
_PERIOD_S = 0.5


class Allocation(NamedTuple):
    """The GPUs of a running job."""

    job_id: str
    gpus: tuple[int, ...]
    """Slurm's indices on this node."""
    total: int
    """GPUs on all nodes."""
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
    if job.user not in (_user(), str(os.getuid())):
        raise SourceError(f"job {number} belongs to {job.user}")
    return _of(job, node)


def _of(job: SlurmJob, node: str) -> Allocation:
    shares = [share for share in job.shares if share.gpus]
    here = next((share.gpus for share in shares if share.node == node), ())
    if not here:
        raise SourceError(f"job {job.id} holds no GPU on {node}")
    return Allocation(job.id, here, sum(len(share.gpus) for share in shares), len(shares))


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class Watched(NamedTuple):
    """What the watch has seen so far."""

    slices: Sequence[Slice]
    models: frozenset[str]
    """Models of the GPUs, in the users' words."""


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
    try:
        os.execvpe(argv[0], list(argv), {**os.environ, MARKS: str(marks)})  # noqa: S606
    except OSError as exc:
        raise SourceError(f"{argv[0]}: cannot be run: {exc.strerror}") from None


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
