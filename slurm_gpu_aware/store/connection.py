"""SQLite connections to the store's files: their settings, copies, and errors as StoreError."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_gpu_aware.errors import StoreBusyError, StoreError

BUSY_TIMEOUT_S = 15.0
"""Longest wait for another writer; a transaction takes far less."""


def connect(file: Path, mode: str) -> sqlite3.Connection:
    with translated(file):
        connection = sqlite3.connect(
            f"{file.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys=on")
    connection.execute("PRAGMA trusted_schema=off")
    return connection


def enable_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL. SQLite's busy handler does not cover this, so this waits itself."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=wal")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def copy_of(file: Path, target: Path) -> Iterator[Path]:
    """A complete, consistent copy of a store, under a name of its own until it becomes ``target``.

    It is not in WAL mode, and private until the caller sets its mode. It has its own connection, so
    it blocks no writer, and it does not see what a writer has not committed. Raises StoreError.
    """
    fresh = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        fresh.unlink(missing_ok=True)
        # SQLite accepts an empty file; no other user may open it before its mode is set.
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        reader = connect(file, "ro")
        try:
            with translated(target):
                reader.execute("VACUUM INTO ?", (str(fresh),))
        finally:
            reader.close()
        yield fresh
    except OSError as exc:
        raise StoreError(f"{target}: cannot be written: {exc.strerror}") from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


@contextmanager
def translated(file: Path) -> Iterator[None]:
    """Translate SQLite's errors about the file to StoreError; errors in SQL pass through."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.OperationalError as exc:
        kind = StoreBusyError if "locked" in str(exc) else StoreError
        raise kind(f"{file}: {_cure(str(exc))}") from exc
    except sqlite3.DatabaseError as exc:
        if type(exc) is not sqlite3.DatabaseError:
            raise
        raise StoreError(
            f"{file}: the file is damaged; move it away and restore a backup, or measure again "
            "with 'gpu-aware-profile sweep' (until then all GPUs count as equal)"
        ) from exc


def _cure(reason: str) -> str:
    if "locked" in reason:
        return "another process is writing to the store and did not end in time"
    if "unable to open" in reason or "readonly" in reason:
        return "cannot be opened; check the owner and mode of the file and of its directory"
    if "full" in reason:
        return "the file system is full; free some space"
    if "I/O" in reason:
        return "the disk cannot be read or written; the kernel's log says why"
    return "SQLite refused a statement"
