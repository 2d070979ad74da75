"""Connection to the store: locks, schema, errors, and the published copy."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import StoreBusyError, StoreError
from slurm_gpu_aware.store.ownership import make_file, published_path
from slurm_gpu_aware.store.schema import APPLICATION_ID, CREATE, VERSION

BUSY_TIMEOUT_S = 15.0
"""Longest wait for another writer; a transaction takes far less."""
_MAKE = "'gpu-aware-profile sweep' or 'gpu-aware-profile import' makes one"

Params = Sequence[Any] | Mapping[str, Any]


class Store:
    """An open store, made by :func:`open_store`. Use it as a context manager, or :meth:`close` it.

    Threads of one process may share it: each query and each write transaction holds a lock.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, *, readonly: bool) -> None:
        self.path = path
        """The opened file: the live file, or the published copy if the live file is unreadable."""
        self.readonly = readonly
        self._connection = connection
        self._lock = threading.RLock()

    def wait_at_most(self, seconds: float) -> None:
        """Set the longest wait of a write for another process, instead of ``BUSY_TIMEOUT_S``."""
        with self._lock, _translated(self.path):
            self._connection.execute(f"PRAGMA busy_timeout={int(1000 * seconds)}")

    def query(self, sql: str, params: Params = ()) -> list[sqlite3.Row]:
        """Run a reading statement and return all rows. Raises StoreError."""
        with self._lock, _translated(self.path):
            return self._connection.execute(sql, params).fetchall()

    def execute(self, sql: str, params: Params = ()) -> sqlite3.Cursor:
        """Run one writing statement; outside :meth:`write` it commits itself."""
        with self.write():
            return self._connection.execute(sql, params)

    def executemany(self, sql: str, rows: Sequence[Params]) -> None:
        """Run a writing statement once per row, in one transaction."""
        with self.write():
            self._connection.executemany(sql, rows)

    @contextmanager
    def write(self) -> Iterator[None]:
        """Group writes into one transaction; nests (an inner block joins the outer one).

        The block takes the write lock at its start (BEGIN IMMEDIATE). Otherwise a read before a
        write fails with "database is locked" if another process writes in between. Any exception
        rolls back the outermost block. Raises StoreError if the store is read-only or damaged,
        StoreBusyError if it is locked for longer than ``BUSY_TIMEOUT_S``.
        """
        if self.readonly:
            raise StoreError(f"{self.path}: opened read-only, cannot be written")
        with self._lock, _translated(self.path):
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection and roll back an open transaction. May be called twice."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(path: Path | str, *, readonly: bool = False) -> Store:
    """Open the store, making it unless ``readonly``.

    Parameters
    ----------
    path : the live SQLite file, on a local file system.
        A missing directory is made. A store that root makes belongs to the owner of the directory,
        so that the selector, which is not root, can write it. Its mode is 0640: other users read
        the published copy.
    readonly : write nothing. If this user cannot read the live file (SQLite needs write access to
        the directory of a WAL file), open the published copy beside it (see :func:`publish`).

    Raises
    ------
    StoreError
        The file is missing or empty (read-only), damaged, not a store, of a newer release, or not
        accessible. The message names the remedy.
    """
    file = Path(path)
    if not readonly:
        make_file(file)
        return _opened(file, readonly=False)
    copy = published_path(file)
    try:
        return _opened(file, readonly=True)
    except StoreError:
        if not copy.exists():
            raise
    return open_copy(copy)


def open_copy(file: Path) -> Store:
    """Open a published copy. Raises StoreError.

    A copy is replaced as a whole and never changed, so SQLite takes no lock, which on a network
    file system could hang.
    """
    return _opened(file, readonly=True, copy=True)


def publish(store: Store, *, mode: int = 0o644) -> None:
    """Write a copy of the store that users without write access can read.

    The copy is complete, consistent and not in WAL mode. It replaces the previous one atomically.
    It includes the ledger: a user who may read it (``mode``; all users by default) sees user names,
    job ids and GPUs, as in ``squeue``. Sites that hide jobs from other users pass ``mode=0o640``
    and set the group of the file.

    The copy has its own connection, so writers are not blocked and a daemon may call this in a
    thread. It takes about as long as copying the file.

    Raises StoreError if the directory cannot be written.
    """
    target = published_path(store.path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        fresh.unlink(missing_ok=True)
        # SQLite accepts an empty file; no other user may open it before its mode is set.
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if os.geteuid() == 0:
            owner = target.parent.stat()
            os.chown(fresh, owner.st_uid, owner.st_gid)
        reader = _connect(store.path, "ro")
        try:
            with _translated(target):
                reader.execute("VACUUM INTO ?", (str(fresh),))
        finally:
            reader.close()
        fresh.chmod(mode)
        fresh.replace(target)
    except OSError as exc:
        raise StoreError(f"{target}: cannot be written: {exc.strerror}") from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def republish(store: Store) -> None:
    """Renew an existing copy with its mode, after a write by another process than the selector.

    Only the selector makes the first copy: it knows from Slurm which users may see jobs. Raises
    StoreError.
    """
    try:
        mode = stat.S_IMODE(published_path(store.path).stat().st_mode)
    except OSError:
        return
    publish(store, mode=mode)


def check_integrity(store: Store) -> list[str]:
    """Return SQLite's complaints about the file; empty: it is sound. Takes O(file size)."""
    complaints = [str(row[0]) for row in store.query("PRAGMA quick_check(10)")]
    return [] if complaints == ["ok"] else complaints


def _opened(file: Path, *, readonly: bool, copy: bool = False) -> Store:
    try:
        missing = not file.exists()
    except OSError as exc:
        raise StoreError(f"{file}: cannot be read: {exc.strerror}") from None
    if missing:
        raise StoreError(f"{file}: no store there; {_MAKE}")
    connection = _connect(file, "ro&immutable=1" if copy else "ro" if readonly else "rw")
    try:
        with _translated(file):
            connection.execute("PRAGMA synchronous=NORMAL")
            if _is_empty(connection, file):
                if readonly:
                    raise StoreError(f"{file}: an empty store; {_MAKE}")
                _enable_wal(connection)
                connection.executescript(CREATE)
        return Store(connection, file, readonly=readonly)
    except BaseException:
        connection.close()
        raise


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    with _translated(file):
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


def _is_empty(connection: sqlite3.Connection, file: Path) -> bool:
    """Whether the file has no tables yet. Raises StoreError unless it is a store that we know."""
    if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
        return True
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{file}: an SQLite file, but not a store of slurm-gpu-aware")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < VERSION:
        raise StoreError(
            f"{file}: written by an older release of slurm-gpu-aware (schema {version}, this one"
            f" needs {VERSION}); move it away and measure again with 'gpu-aware-profile sweep'"
        )
    if version > VERSION:
        raise StoreError(
            f"{file}: written by a newer release of slurm-gpu-aware (schema {version}, this one"
            f" knows up to {VERSION}); upgrade this installation"
        )
    return False


def _enable_wal(connection: sqlite3.Connection) -> None:
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
def _translated(file: Path) -> Iterator[None]:
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
