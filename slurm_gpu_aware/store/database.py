"""The store: opening it or one of its copies, locks, the published copy, single values."""

from __future__ import annotations

import grp
import os
import pwd
import sqlite3
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store import schema
from slurm_gpu_aware.store.files import (
    connect,
    copy_of,
    enable_wal,
    make_file,
    published_path,
    translated,
)

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import StoreConfig

CLASS_CENTRES = "class_centres"  # Centres of the site's application classes, JSON.
EFFBW = "effbw"  # GPU model -> coefficients of its EffBW, JSON.
POLICY = "policy"  # The policy of the selector's last round, in words.
POWER = "power"
"""Power of the site after the selector's last round, JSON (`PowerReading`)."""
SCORE_REFERENCE = "score_reference"  # What scores are relative to, see ``variability.scores``.
_OF_JOBS = ("decisions", "events", "shadow_jobs", "job_classes", "model_samples")
"""Tables with names of users, or with jobs."""
_MAKE = "'gpu-aware-profile sweep' or 'gpu-aware-profile import' makes one"

Params = Sequence[Any] | Mapping[str, Any]
Row = sqlite3.Row


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
        with self._lock, translated(self.path):
            self._connection.execute(f"PRAGMA busy_timeout={int(1000 * seconds)}")

    def query(self, sql: str, params: Params = ()) -> list[sqlite3.Row]:
        """Run a reading statement and return all rows. Raises StoreError."""
        with self._lock, translated(self.path):
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
        with self._lock, translated(self.path):
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
    """Open the store; unless ``readonly``, make it, or bring one of an earlier release forward.

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
        The file is missing or empty (read-only), damaged, not a store, of a newer release,
        (read-only) of an earlier one, or not accessible. The message names the remedy.
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


def upgrade(path: Path) -> None:
    """Bring a store that is there forward if this user may write it; of others, readers tell."""
    if path.exists() and os.access(path, os.W_OK, effective_ids=True):
        with suppress(StoreError):
            open_store(path).close()


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
    with copy_of(store.path, target) as fresh:
        if os.geteuid() == 0:
            owner = target.parent.stat()
            os.chown(fresh, owner.st_uid, owner.st_gid)
        fresh.chmod(mode)
        fresh.replace(target)


def republish(store: Store) -> None:
    """Renew the copy with its mode, after a write by another process than selector and shadow.

    These two make the first copy with jobs: they know from Slurm which users may see them. Where
    the store knows jobs and the copy knows none yet, other users lose it until then. Raises
    StoreError.
    """
    target, knows = published_path(store.path), _knows_jobs(store)
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except OSError:
        if knows:
            return
        mode = 0o644
    if knows:
        try:
            with _opened(target, readonly=True, copy=True) as copy:
                asked = _knows_jobs(copy)
        except StoreError:
            asked = False
        if not asked:
            mode &= 0o640
    publish(store, mode=mode)


def _knows_jobs(store: Store) -> bool:
    return any(store.query(f"SELECT 1 FROM {name} LIMIT 1") for name in _OF_JOBS)  # noqa: S608


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
    connection = connect(file, "ro&immutable=1" if copy else "ro" if readonly else "rw")
    try:
        with translated(file):
            connection.execute("PRAGMA synchronous=NORMAL")
            version = schema.version_of(connection, file)
            if readonly and version != schema.VERSION:
                raise StoreError(f"{file}: {_unreadable(version)}")
            if version == 0:
                enable_wal(connection)
            if version != schema.VERSION:
                schema.bring_forward(connection, file)
        return Store(connection, file, readonly=readonly)
    except BaseException:
        connection.close()
        raise


def _unreadable(version: int) -> str:
    """Why a reader cannot use a store of an earlier schema, or (0) an empty one."""
    if version == 0:
        return f"an empty store; {_MAKE}"
    return (
        f"of schema {version}, and this release reads schema {schema.VERSION}; the selector brings"
        " it forward when it is restarted, and so does 'gpu-aware-profile sweep'"
    )


def open_for_reading(settings: StoreConfig) -> Store:
    """Open the store, or the copy beside it, or the copy on a shared folder (``published``).

    A shared copy that is newer than the copy beside the store comes first: the selector of another
    host works and writes it. Raises StoreError that says what to do, and who does it.
    """
    copies = copies_of(settings)
    if renewed_at(copies[-1]) > renewed_at(copies[0]):
        with suppress(StoreError):
            return open_copy(copies[-1])
    try:
        return open_store(settings.path, readonly=True)
    except StoreError as exc:
        damaged = _readable(settings.path) and settings.path.stat().st_size > 0
        failure = str(exc)
    for copy in copies:
        if _readable(copy):
            return open_copy(copy)
    closed = next((copy for copy in copies if _exists(copy)), None)
    if damaged:
        raise StoreError(failure)
    if closed is not None:
        why = "where the site hides jobs (PrivateData) that is meant so"
        raise StoreError(f"{closed}: only {_readers(closed)} may read it; {why}")
    raise StoreError(_what_to_do(settings))


def _what_to_do(settings: StoreConfig) -> str:
    path, shared = settings.path, settings.published
    if shared is not None:
        return (
            f"there is no {shared} on this host: the selector writes it, so its folder must be the"
            " same on all hosts; on the controller 'gpu-aware doctor' says what is wrong with it"
        )
    return (
        f"no store on this host: neither {path} nor {published_path(path).name} can be read. On the"
        " controller, an administrator starts the selector (systemctl enable --now"
        " gpu-aware-selectd), or makes the store with 'gpu-aware-profile sweep'. For other hosts,"
        " an administrator sets store.published in config.toml to a file on a shared folder; until"
        " then use this command on the controller"
    )


def copies_of(settings: StoreConfig) -> list[Path]:
    """The published copy beside the store, and that on a shared folder if the site has one."""
    return [published_path(settings.path), *filter(None, [settings.published])]


def renewed_at(copy: Path) -> float:
    """Unix time at which its selector last said that it is valid; 0: there is none."""
    try:
        return copy.stat().st_mtime
    except OSError:
        return 0.0


def _readable(file: Path) -> bool:
    return os.access(file, os.R_OK)


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # its folder is closed to this user
        return True


def _readers(file: Path) -> str:
    """Who may read a file, by its folder if that is closed."""
    try:
        status = file.stat()
    except OSError:
        return f"those who may enter {file.parent}"
    try:
        user, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        user, group = str(status.st_uid), str(status.st_gid)
    return f"user {user} and group {group}"


def put_value(store: Store, key: str, value: str) -> None:
    """Set the value of a key."""
    store.execute(
        "INSERT INTO settings (key, value) VALUES (?, ?)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def value_of(store: Store, key: str) -> str | None:
    """The value of a key; None: not set."""
    rows = store.query("SELECT value FROM settings WHERE key = ?", (key,))
    return str(rows[0]["value"]) if rows else None
