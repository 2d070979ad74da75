"""Instance locks: one selector or rollout runs at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.lockfile import open_lock

__all__ = ["SELECTOR_LOCK", "hold_lock", "hold_selector_lock"]

SELECTOR_LOCK = "selectd.lock"
"""Name of the selector's lock file, beside the store."""


@contextlib.contextmanager
def hold_selector_lock(store: Path) -> Iterator[None]:
    """Hold the selector's lock, beside its store. Raises SourceError."""
    path = store.parent / SELECTOR_LOCK
    # Root ('release --all') must not make a lock that SlurmUser cannot open.
    with hold_lock(path, "selector", of_folder=True):
        yield


@contextlib.contextmanager
def hold_lock(path: Path, what: str, *, of_folder: bool = False) -> Iterator[None]:
    """Hold a lock that ends with the process, and write the process id to its file.

    Parameters
    ----------
    path : the lock file; made, with its folder, if missing.
    what : the program, for the message.
    of_folder : the file belongs to the folder's owner even if root makes it.

    Raises SourceError if another process holds the lock or the file cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        owner = path.parent.stat().st_uid if of_folder and os.geteuid() == 0 else None
        handle = open_lock(str(path), owner)
    except OSError as exc:
        raise SourceError(f"{path}: cannot be opened: {exc.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            process = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise SourceError(
                f"another {what} runs on this host (process {process}); stop it first."
                f" 'fuser -v {path}' names what holds the lock"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
