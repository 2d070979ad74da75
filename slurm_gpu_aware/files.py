"""Files that others may touch: opened without a link, read if they can be trusted, written whole.

A lock file can be opened by its owner only: a user who can open one can hold its lock. Standard
library only, without modules that take milliseconds to import, for the hooks of `clocks`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slurm_gpu_aware.errors import ConfigError, FileFault, SourceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any, BinaryIO, TextIO, TypeVar

    T = TypeVar("T")

SELECTOR_LOCK = "selectd.lock"  # Name of the selector's lock file, beside the store.
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_NO_WAIT = _NO_LINK | os.O_NONBLOCK  # No pipe is waited on.
_MOST_OWNED = 4096


def user_name(uid: int) -> str:
    """Name of a user of this host, else the number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def open_folder(path: Path | str, dir_fd: int | None = None) -> int:
    """Open a folder, for calls with ``dir_fd``. Raises OSError, also for a link."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=dir_fd)


def open_plain(file: Path) -> tuple[BinaryIO, os.stat_result]:
    """Open a file that others may have written, and its status; no link is followed, no pipe waited
    on. Raises OSError, PermissionError if it is not a plain file.
    """
    handle = os.open(file, os.O_RDONLY | _NO_WAIT)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise PermissionError(errno.EPERM, "not a plain file", str(file))
    return open(handle, "rb"), status


def first_bytes(name: str, most: int, dir_fd: int | None = None) -> bytes:
    """What a small file begins with; no link is followed, no pipe waited on. Raises OSError."""
    handle = os.open(name, os.O_RDONLY | _NO_WAIT, dir_fd=dir_fd)
    try:
        return os.read(handle, most)
    finally:
        os.close(handle)


def put_small(name: str, content: bytes, mode: int, folder: int | None) -> None:
    """Write a small file of a folder in one step, whatever the umask. Raises OSError."""
    temporary = f".{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK
    handle = os.open(temporary, flags, mode, dir_fd=folder)
    try:
        os.fchmod(handle, mode)
        os.write(handle, content)
    finally:
        os.close(handle)
    os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def make_new(name: str, folder: int) -> BinaryIO:
    """Make a private file in a folder. Raises OSError, also if there is one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
    return open(os.open(name, flags, 0o600, dir_fd=folder), "wb")


class ReplacedFile:
    """A new file that takes the place of ``path`` at the end, whole or not at all; for ``with``.

    The file has mode 0600 unless the caller changes it. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> TextIO:
        import tempfile

        folder, name = self._path.parent, self._path.name
        handle, self._fresh = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        self._stream = open(handle, "w", encoding="utf-8", errors="surrogateescape")
        return self._stream

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with self._stream:
                if kind is None:
                    self._stream.flush()
                    os.fsync(self._stream.fileno())
            if kind is None:
                os.replace(self._fresh, self._path)
        finally:
            if os.path.lexists(self._fresh):
                os.unlink(self._fresh)


# -- files of the admin ----------------------------------------------------------------------------


def write_owned(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file, which every user may read, atomically. Raises SourceError."""
    import json

    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    with FileFault(path, "written"), ReplacedFile(path) as stream:
        stream.write(text)
        os.fchmod(stream.fileno(), 0o644)  # also with a strict umask


def read_owned(path: Path, parse: Callable[[Any], T]) -> T | None:
    """What ``parse`` makes of the JSON value of a small file; None: there is no file.

    It must belong to root or to the owner of its folder (SlurmUser), and no other may write it.
    ``parse`` raises ValueError for a wrong value. Raises ConfigError for a file that is not to be
    trusted, damaged, or wrong.
    """
    from slurm_gpu_aware.text_file import decoded, parse_json

    try:
        return parse(parse_json(decoded(_owned_bytes(path), path), path))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
    except SourceError as exc:
        raise ConfigError(str(exc)) from None
    except ValueError as exc:
        raise ConfigError(f"{path}: {exc}") from None


def _owned_bytes(path: Path) -> bytes:
    """The content. Raises OSError, and ValueError if it is not safe."""
    stream, status = open_plain(path)
    with stream:
        if status.st_nlink != 1:
            raise ValueError("not a plain file with one name")
        if status.st_uid not in (0, path.parent.stat().st_uid):
            raise ValueError("belongs to neither root nor the owner of its folder")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("others than its owner may write it")
        data = stream.read(_MOST_OWNED + 1)
    if len(data) > _MOST_OWNED:
        raise ValueError(f"larger than {_MOST_OWNED} bytes")
    return data


def identity_of(path: Path) -> tuple[int, ...] | None:
    """What changes with the file's content, owner or mode; None: there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_ctime_ns, status.st_size)


# -- locks -----------------------------------------------------------------------------------------


def open_lock(path: str, owner: int | None = None, dir_fd: int | None = None) -> int:
    """Open a lock file, or make it; return the file descriptor.

    The file gets mode 0600 and ``owner`` (a user id; None: the effective one), even if it exists
    already. Another owner than the process needs root.

    Raises OSError, also for a link and for a file with several names.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_WAIT, 0o600, dir_fd=dir_fd)
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
