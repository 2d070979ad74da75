"""Job map of dcgm-exporter (``--hpc-job-mapping-dir``): a file per GPU with the jobs that hold it.

A file is named by DCGM's number of the GPU, which is NVML's index, and has Slurm's number of a job
on each line; dcgm-exporter makes the label ``hpc_job`` of it. The prolog writes, the epilog
removes. Files of other names, as MIG instances have (``2.0``), are left alone.

https://github.com/NVIDIA/dcgm-exporter, README and internal/pkg/transformation/hpc.go
"""

from __future__ import annotations

import errno
import os
import stat

from slurm_gpu_aware.clocks.notes import Held, words_in
from slurm_gpu_aware.files import open_folder, open_lock, put_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_LOCK = ".lock"
_LOCK_EX = 2
_WAIT_S = 3.0
_LONGEST = 4096
"""Bytes of a file that are read."""
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
