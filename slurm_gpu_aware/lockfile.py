"""Lock files that only their owner can open: a user who can open one can hold its lock.

Standard library only, without modules that take milliseconds to import, for the hooks of `clocks`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slurm_gpu_aware.errors import SourceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

SELECTOR_LOCK = "selectd.lock"
"""Name of the selector's lock file, beside the store."""


def open_lock(path: str, owner: int | None = None, dir_fd: int | None = None) -> int:
    """Open a lock file, or make it; return the file descriptor.

    The file gets mode 0600 and ``owner`` (a user id; None: the effective one), even if it exists
    already. Another owner than the process needs root.

    Raises OSError, also for a link and for a file with several names.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600, dir_fd=dir_fd)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise PermissionError(errno.EPERM, "not a plain file with one name", path)
        wanted = os.geteuid() if owner is None else owner
        if status.st_uid != wanted:
            os.fchown(handle, wanted, -1)
        if stat.S_IMODE(status.st_mode) != 0o600:
            os.fchmod(handle, 0o600)
    except BaseException:
        os.close(handle)
        raise
    return handle


class InstanceLock:
    """Lock of a program (``what``) that runs once; for ``with``, and it ends with the process.

    The file, and its folder, are made if missing; it holds the process id. ``of_folder``: it
    belongs to the folder's owner even if root makes it. Raises SourceError if another process
    holds the lock or the file cannot be opened.
    """

    def __init__(self, path: Path, what: str, *, of_folder: bool = False) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            owner = path.parent.stat().st_uid if of_folder and os.geteuid() == 0 else None
            self._handle = open_lock(str(path), owner)
        except OSError as exc:
            raise SourceError(f"{path}: cannot be opened: {exc.strerror}") from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            process = os.pread(self._handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._handle)
            raise SourceError(
                f"another {what} runs on this host (process {process}); stop it first."
                f" 'fuser -v {path}' names what holds the lock"
            ) from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def hold_selector_lock(store: Path) -> InstanceLock:
    """Hold the selector's lock, beside its store. Raises SourceError."""
    # Root ('release --all') must not make a lock that SlurmUser cannot open.
    return InstanceLock(store.parent / SELECTOR_LOCK, "selector", of_folder=True)
