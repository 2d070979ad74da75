"""Shared copy: the published copy, copied on to a folder that other hosts share.

A network file system can hang for hours. So a child of the selector copies, which neither its
rounds, its heartbeat nor its end wait for. Standard library only: the child is this module.
"""

import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from slurm_gpu_aware.files import make_new, open_folder, user_name

_POLL_S = 2.0
SHARE = 50.0  # copying takes at most a 50th of the time, if all copies take the same
_FAILED_S = 30.0
_LAST_S = 2.0  # longest wait at the selector's end for the last copy


class SharedCopy:
    """The child that copies ``source`` to ``target`` whenever it was renewed."""

    def __init__(self, source: Path, target: Path) -> None:
        self._command = [sys.executable, "-P", "-m", __name__, str(source), str(target)]
        self._child: subprocess.Popen[bytes] | None = None
        self._started = -_FAILED_S

    def ensure(self) -> None:
        """Start the child if it does not run. Raises OSError."""
        if self._child is not None and self._child.poll() is None:
            return
        if time.monotonic() - self._started < _FAILED_S:
            return
        self._started = time.monotonic()
        self._child = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
        )

    def close(self) -> None:
        """Let the child copy once more and end; one that hangs is left alone."""
        if self._child is None or self._child.stdin is None:
            return
        self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_LAST_S)


def copy(source: Path, target: Path) -> None:
    """Replace ``target`` by a copy of ``source`` with its mode and times, atomically.

    Raises OSError, PermissionError with a sentence if another user could write to the folder.
    """
    folder = open_folder(target.parent)
    try:
        _check(os.fstat(folder), target.parent)
        with source.open("rb") as file:
            status = os.fstat(file.fileno())
            _write(folder, target.name, file, status)
    finally:
        os.close(folder)


def _check(folder: os.stat_result, path: Path) -> None:
    if folder.st_uid != os.geteuid() or folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        user = user_name(os.geteuid())
        raise PermissionError(
            f"{path} must belong to {user} and be writable for no other user: as root,"
            f" install -d -o {user} -m 755 {path}"
        )


def _write(folder: int, name: str, file: BinaryIO, status: os.stat_result) -> None:
    fresh, before = f".{name}.new", f".{name}.before"
    _remove(fresh, folder)
    try:
        with make_new(fresh, folder) as out:
            shutil.copyfileobj(file, out)
            out.flush()
            os.fsync(out.fileno())
            os.utime(out.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fchmod(out.fileno(), stat.S_IMODE(status.st_mode))
        # NFS: who has the former copy open on another host can read it until the next one.
        _remove(before, folder)
        with contextlib.suppress(OSError):  # the former one is as private as the new one
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=folder, follow_symlinks=True)
        with contextlib.suppress(OSError):
            os.link(name, before, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        _remove(fresh, folder)


def _remove(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def pause_after(*copied_s: float) -> float:
    """Pause after a copy, s, by the time of the last one, or of the last two.

    The shorter one counts: a copy that a busy machine holds up once puts off none.
    """
    return SHARE * min(copied_s)


def _run(source: Path, target: Path) -> None:
    """Copy until stdin ends, and once more then."""
    copied = touched = 0
    said = ""
    pause_s, copied_s, ended = 0.0, 0.0, False
    while not ended:
        ended = bool(select.select([0], [], [], pause_s)[0])
        began = time.monotonic()
        pause_s = _POLL_S
        try:
            status = source.stat()
        except OSError:
            continue  # the selector has published nothing yet
        try:
            if status.st_ino != copied:
                copy(source, target)
                said = ""
                before_s, copied_s = copied_s, time.monotonic() - began
                pause_s = max(_POLL_S, pause_after(before_s, copied_s))
            elif status.st_mtime_ns != touched:  # it says that the copy is still valid
                times = (status.st_atime_ns, status.st_mtime_ns)
                os.utime(target, ns=times, follow_symlinks=False)
            copied, touched = status.st_ino, status.st_mtime_ns
        except OSError as exc:
            said = _say(target, exc, said)
            copied, pause_s = 0, _FAILED_S


def _say(target: Path, exc: OSError, said: str) -> str:
    """Say why nothing was copied, unless that was said before."""
    text = f"{target} (store.published) cannot be written: {exc.strerror or exc}"
    if text != said:
        sys.stderr.write(f"{text}\n")
    return text


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _run(Path(sys.argv[1]), Path(sys.argv[2]))
