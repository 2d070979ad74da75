"""One selector at a time: a lock on a file beside the store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.lockfile import open_lock

__all__ = ["LOCK", "alone"]

LOCK = "selectd.lock"
"""Name of the file."""


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock that only one selector can have. Raises SourceError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Root ('release --all') must not make a lock that the selector, as SlurmUser, cannot open.
        owner = path.parent.stat().st_uid if os.geteuid() == 0 else None
        handle = open_lock(str(path), owner)
    except OSError as exc:
        raise SourceError(f"{path}: cannot be opened: {exc.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise SourceError(
                f"another selector runs on this host (process {who}); stop it first."
                f" 'fuser -v {path}' names what holds the lock"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
