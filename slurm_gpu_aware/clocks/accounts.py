"""Accounts of a node's GPUs: which job holds each, since when, and its energy counter then.

A prolog opens the accounts of its job's GPUs and its epilog closes them. One small file per GPU, so
that the next job on a GPU replaces an account that no epilog closed.

Job map of dcgm-exporter (``--hpc-job-mapping-dir``): a file per GPU with the jobs that hold it. It
is named by DCGM's number of the GPU, which is NVML's index, and has Slurm's number of a job on each
line; dcgm-exporter makes the label ``hpc_job`` of it. The prolog writes, the epilog removes. Files
of other names, as MIG instances have (``2.0``), are left alone.

https://github.com/NVIDIA/dcgm-exporter, README and internal/pkg/transformation/hpc.go
"""

from __future__ import annotations

import errno
import os
import stat

from slurm_gpu_aware.bounds import MAX_GPU_W, setting_text
from slurm_gpu_aware.clocks.driver import Result
from slurm_gpu_aware.clocks.job import parse_setting
from slurm_gpu_aware.clocks.notes import Held, NoteFolder, words_in
from slurm_gpu_aware.files import open_folder, open_lock, put_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slurm_gpu_aware.clocks.job import Job, Setting

INBOX = "inbox"
_BOOT = "/proc/sys/kernel/random/boot_id"


class Account:
    """Account of a GPU that a job holds.

    ``restarts``: Slurm's count of the job's restarts. ``asked``: clock and power limit of the
    prolog. ``energy_mj``: NVML's counter at the start; None: not known.
    """

    def __init__(
        self,
        job_id: str,
        restarts: int,
        asked: Setting,
        at: float,
        boot: str,
        uuid: str,
        energy_mj: int | None,
    ) -> None:
        self.job_id = job_id
        self.restarts = restarts
        self.asked = asked
        self.at = at
        self.boot = boot
        self.uuid = uuid
        self.energy_mj = energy_mj
        self.set: Setting | None = None
        """What the agent set since; None: nothing."""

    def line(self) -> str:
        """The file's line: the job first, for the epilog script; ``-`` for what is not known."""
        energy = "-" if self.energy_mj is None else self.energy_mj
        since = "-" if self.set is None else setting_text(*self.set)
        uuid = "".join(self.uuid.split()) or "-"
        start = f"{self.job_id} {self.restarts} {setting_text(*self.asked)} {self.at} {self.boot}"
        return f"{start} {uuid} {energy} {since}"


class Accounts(NoteFolder):
    """The accounts of a node."""

    def all(self) -> dict[int, Account]:
        """GPU index -> its account; those that cannot be read are left out."""
        found = {index: _account(words) for index, words in self.words().items()}
        return {index: account for index, account in found.items() if account is not None}

    def forget_all(self) -> None:
        """Drop all accounts, and what hooks have left for the agent (`inbox`)."""
        for index in self.words():
            self.forget(index)
        inbox = os.path.join(self.folder, INBOX)
        for name in os.listdir(inbox) if os.path.isdir(inbox) else ():
            os.unlink(os.path.join(inbox, name))

    def withdraw(self, job_id: str) -> None:
        """Drop the prolog of a job that has ended, if the agent has not begun it."""
        try:
            os.unlink(os.path.join(self.folder, INBOX, f"{job_id}.prolog"))
        except OSError:
            pass

    def of_job(self, job_id: str) -> dict[int, Account]:
        """GPU index -> account of a job."""
        return {index: a for index, a in self.all().items() if a.job_id == job_id}

    def open(
        self,
        job: Job,
        indices: Sequence[int],
        asked: Setting,
        at: float,
        meters: Iterable[Result],
    ) -> None:
        """Open the accounts of a job; ``meters``: the counters that are known. Raises OSError."""
        start = (job.id, job.restarts, asked, at, boot_id())
        read = {meter.index: meter for meter in meters}
        for index in indices:
            meter = read.get(index, Result(index))
            self.put(index, Account(*start, meter.uuid, meter.energy_mj).line())

    def close(self, job_id: str, at: float, now: float) -> dict[int, Account]:
        """Close the accounts of a job; return them by GPU.

        ``at``: when its epilog ran; accounts that were opened since then stay.
        """
        opened = {i: one for i, one in self.of_job(job_id).items() if not at < one.at <= now}
        for index in opened:
            self.forget(index)
        return opened


def energy_record(
    closed: Mapping[int, Account], meters: Iterable[Result] | None, at: float
) -> dict[str, object]:
    """What a record says of accounts that were closed at a Unix time.

    ``meters``: of their GPUs; None: too late for a counter to tell the energy. A record has
    ``restarts``, ``gpus``, ``seconds``, and ``energy_j`` of all; None, with an ``error``, if that
    of one is not known.
    """
    said: dict[str, object] = {
        "restarts": max(account.restarts for account in closed.values()),
        "gpus": sorted(closed),
        "seconds": round(max(0.0, at - min(account.at for account in closed.values())), 3),
        "energy_j": None,
    }
    if meters is None:
        return said | {"error": "the agent learned of its end too late"}
    total, boot = 0, boot_id()
    for meter in sorted(meters, key=lambda one: one.index):
        try:
            total += used_mj(closed[meter.index], meter, boot, at)
        except ValueError as exc:
            return said | {"error": f"GPU {meter.index}: {exc}"}
    return said | {"energy_j": total / 1e3}


def used_mj(start: Account, meter: Result, boot: str, at: float) -> int:
    """Energy of a GPU since its account was opened. Raises ValueError if it is not known.

    NVML counts since the driver was loaded, so a counter that fell began anew.
    """
    if start.energy_mj is None:
        raise ValueError("its energy was not known at the start")
    if meter.energy_mj is None:
        raise ValueError(meter.error or "its energy is not known")
    if (start.boot, start.uuid) != (boot, meter.uuid):
        raise ValueError("the node or the GPU is not the same as at the start")
    used = meter.energy_mj - start.energy_mj
    # A second more: the counter is written every 20 to 100 ms, and clocks of nodes are adjusted.
    if used < 0 or used > 1e3 * MAX_GPU_W * (max(0.0, at - start.at) + 1.0):
        raise ValueError("its energy counter was reset")
    return used


def boot_id() -> str:
    """Number of the node's boot; ``-`` if it is not known."""
    try:
        with open(_BOOT, encoding="ascii") as stream:
            return stream.read(64).strip() or "-"
    except (OSError, ValueError):
        return "-"


def _account(words: list[str]) -> Account | None:
    try:
        job_id, restarts, asked, at, boot, uuid, energy, since = words
        account = Account(
            job_id,
            int(restarts),
            _setting(asked),
            float(at),
            boot,
            "" if uuid == "-" else uuid,
            None if energy == "-" else int(energy),
        )
        account.set = None if since == "-" else _setting(since)
    except ValueError:
        return None
    return account


def _setting(text: str) -> Setting:
    setting = parse_setting(text)
    if setting is None:
        raise ValueError(text)
    return setting


_LOCK = ".lock"
_LOCK_EX = 2
_WAIT_S = 3.0
_LONGEST = 4096  # Bytes of a file that are read.
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class JobMap:
    """The folder; its methods raise OSError.

    It is made if missing, with mode 0755, as dcgm-exporter may be another user. A folder that
    another user could write to is refused: its files would become labels.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def add(self, job_id: str, indices: Iterable[int], *, shared: bool) -> None:
        """Enter a job for GPUs by NVML's index. Unless ``shared``, it replaces what is there."""
        with _Opened(self.folder) as folder:
            for index in indices:
                others = _jobs(folder, str(index)) if shared else []
                _write(folder, str(index), [*(j for j in others if j != job_id), job_id])

    def remove(self, job_id: str) -> None:
        """Remove a job from all files; an empty file goes."""
        if not os.path.isdir(self.folder):
            return
        with _Opened(self.folder) as folder:
            for name in _files(folder):
                jobs = _jobs(folder, name)
                if job_id in jobs:
                    _write(folder, name, [job for job in jobs if job != job_id])

    def clear(self) -> None:
        """Remove all jobs: at the start of a node none runs."""
        if not os.path.isdir(self.folder):
            return
        with _Opened(self.folder) as folder:
            for name in _files(folder):
                _write(folder, name, [])


class _Opened:
    """The folder's descriptor while no other hook is at work in it; for ``with``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        os.makedirs(self._path, mode=0o755, exist_ok=True)
        self._folder = open_folder(self._path)
        try:
            found = os.fstat(self._folder)
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
                raise PermissionError(errno.EPERM, "others may write to it", self._path)
            self._lock = open_lock(_LOCK, dir_fd=self._folder)
        except BaseException:
            os.close(self._folder)
            raise
        self._held = Held(self._lock, _LOCK_EX, _WAIT_S)
        self._held.__enter__()  # if it takes too long, a map that is wrong for a while is no harm
        return self._folder

    def __exit__(self, *_: object) -> None:
        self._held.__exit__()
        os.close(self._lock)
        os.close(self._folder)


def _files(folder: int) -> list[str]:
    return [name for name in os.listdir(folder) if name.isascii() and name.isdecimal()]


def _jobs(folder: int, name: str) -> list[str]:
    """Numbers of jobs in a file; none if it cannot be read."""
    words = words_in(folder, name, _LONGEST, "replace")
    return [word for word in words if word.isdecimal()]


def _write(folder: int, name: str, jobs: list[str]) -> None:
    if not jobs:
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        return
    # dcgm-exporter takes no file of a name such as that of an unfinished one.
    put_small(name, "".join(f"{job}\n" for job in jobs).encode(), 0o644, folder)
