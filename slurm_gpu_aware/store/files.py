"""Files of the store: owner and mode, SQLite connections to them, copies. Standard library only.

The live files hold the ledger, which a site may hide from its users: only their owner and group
can read them; other users read the published copy. The selector runs as SlurmUser and must be able
to write files that root has made.
"""

import glob
import os
import pwd
import sqlite3
import stat
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_gpu_aware.errors import StoreBusyError, StoreError
from slurm_gpu_aware.files import user_name

BUSY_TIMEOUT_S = 15.0  # Longest wait for another writer; a transaction takes far less.
LIVE_MODE = 0o640
_PRIMARY = 0xFF  # The bits of SQLite's extended result codes that are the primary code.
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NOT_OPENED = "cannot be opened; check the owner and mode of the file and of its directory"
_REASONS = {
    **dict.fromkeys(_BUSY, "another process is writing to the store and did not end in time"),
    sqlite3.SQLITE_CANTOPEN: _NOT_OPENED,
    sqlite3.SQLITE_READONLY: _NOT_OPENED,
    sqlite3.SQLITE_FULL: "the file system is full; free some space",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written; the kernel's log says why",
}
_ENDS = ("", "-wal", "-shm")
ROLLOUT_STATE = "rollout.json"
"""State of ``setup --roll``, beside the store; its lock is named ``.lock``."""
REMOVAL_STATE = "removal.json"  # State of ``setup --remove``, beside the store.
OF_SETUP = (ROLLOUT_STATE, f"{ROLLOUT_STATE}.lock", REMOVAL_STATE)
_STAYS = frozenset({*OF_SETUP, "tuned.json", "clock-locks", "clocks"})
"""Files that may stay root's: that state, what ``tune`` has set, and notes and records of the
prolog on a host that is also a compute node."""


def published_path(path: Path) -> Path:
    """Path of the published copy of a store: ``store.db`` -> ``store.public.db``."""
    return path.with_name(f"{path.stem}.public{path.suffix}")


def kept_path(path: Path, version: int, number: int = 1) -> Path:
    """Path of the copy that a migration keeps: ``store.db`` of schema 8 -> ``store.schema8.db``.

    ``number``: counts copies of the same schema, ``store.schema8.2.db``.
    """
    more = "" if number == 1 else f".{number}"
    return path.with_name(f"{path.stem}.schema{version}{more}{path.suffix}")


def live_files(path: Path) -> list[Path]:
    """The live file and the files that SQLite keeps beside it while it is open."""
    return [path.with_name(path.name + end) for end in _ENDS]


def counters_path(path: Path) -> Path:
    """File of what the selector has counted, beside a store; every user may read it."""
    return path.with_name(f"{path.stem}.counters.json")


def of_selector(path: Path) -> list[Path]:
    """Files in the store's folder that the selector writes, copies of earlier schemas included."""
    beside = [path.with_name(name) for name in ("selectd.lock", "clocks.offsets")]
    kept = sorted(path.parent.glob(f"{glob.escape(path.stem)}.schema*{glob.escape(path.suffix)}"))
    return [*live_files(path), published_path(path), counters_path(path), *beside, *kept]


def make_file(path: Path) -> None:
    """Make an empty live file with its folder, or revoke other users' access to an existing one.

    A file that root makes gets the owner of the folder. SQLite gives ``-wal`` and ``-shm`` the mode
    of the file and, as root, its owner. Raises StoreError that names the remedy.
    """
    folder = path.parent
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(0o755)  # independent of the umask: all users read the published copy
        if path.exists():
            for file in live_files(path):
                _revoke_others(file)
            return
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, LIVE_MODE))
        if os.geteuid() == 0:
            owner = folder.stat()
            os.chown(path, owner.st_uid, owner.st_gid)
    except OSError as exc:
        raise StoreError(f"{path}: cannot be created: {exc.strerror}; {_cure(folder)}") from None


def _revoke_others(file: Path) -> None:
    """Revoke other users' access to a file, if this user may change its mode."""
    try:
        status = file.stat()
        if status.st_mode & 0o007 and os.geteuid() in (0, status.st_uid):
            file.chmod(stat.S_IMODE(status.st_mode) & ~0o007)
    except FileNotFoundError:
        pass  # -wal and -shm come and go


def _cure(folder: Path) -> str:
    user = user_name(os.geteuid())
    if folder.is_dir():
        return f"{folder} must be writable for {user}"
    return f"as root: install -d -o {user} {folder}"


def give_folder(folder: Path, user: str, names: Collection[str] = ()) -> list[Path]:
    """As root: make a folder for ``user``, or change its owner from root; return the changed paths.

    ``names``: files of root in it that also change, as do the notes of sweeps. A folder of another
    user stays unchanged. So does a folder with any other files, because a site may keep its store
    in ``/var/lib`` itself. Raises LookupError for an unknown user, OSError.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        raise LookupError(f"no such user: {user}") from None
    made = not folder.is_dir()
    if made:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    if os.geteuid() != 0 or entry.pw_uid == 0:
        return [folder] if made else []
    inside = {file.name: file for file in folder.iterdir() if not file.name.startswith(".")}
    if inside.keys() - {*names, *_STAYS, "sweeps"} or folder.stat().st_uid not in (0, entry.pw_uid):
        return []
    given = [folder, *(file for name, file in sorted(inside.items()) if name not in _STAYS)]
    if "sweeps" in inside and not inside["sweeps"].is_symlink():
        given += sorted(inside["sweeps"].rglob("*"))
    return [file for file in given if _give(file, entry)]


def _give(path: Path, entry: pwd.struct_passwd) -> bool:
    """Change the owner of a path of root; a link or a file with several names stays unchanged."""
    status = path.lstat()
    plain = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
    if not plain or status.st_uid == entry.pw_uid or status.st_uid != 0:
        return False
    os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    return True


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
        code = getattr(exc, "sqlite_errorcode", 0) & _PRIMARY  # not of all errors of the module
        kind = StoreBusyError if code in _BUSY else StoreError
        raise kind(f"{file}: {_REASONS.get(code, 'SQLite refused a statement')}") from exc
    except sqlite3.DatabaseError as exc:
        if type(exc) is not sqlite3.DatabaseError:
            raise
        raise StoreError(
            f"{file}: the file is damaged; move it away and restore a backup, or measure again "
            "with 'gpu-aware-profile sweep' (until then all GPUs count as equal)"
        ) from exc
