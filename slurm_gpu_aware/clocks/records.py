"""Records of the hooks, one line of JSON each: in the spool for the selector, and in syslog."""

from __future__ import annotations

import errno
import os
import pwd
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slurm_gpu_aware.clocks.job import Record
    from slurm_gpu_aware.clocks.notes import Notes

ROTATE_BYTES = 8 << 20
"""A spool file that is larger becomes NODE.jsonl.1, in place of the one before it."""
_LONGEST_LINE = 900  # Characters that syslog takes at once.


def to_json(record: Record) -> str:
    """The record on one line. Python's ``json`` takes half as long to import as Python to start."""
    return "{" + ",".join(f'"{key}":{_value(record[key])}' for key in record) + "}"


def _value(value: object) -> str:
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    plain = (c if " " <= c <= "~" else f"\\u{ord(c):04x}" if c <= "\uffff" else "?" for c in text)
    return f'"{"".join(plain)}"'


def spool(
    folder: str,
    records: Sequence[Record],
    notes: Notes,
    rotate_bytes: int = ROTATE_BYTES,
    *,
    slurm_user: str = "",
) -> None:
    """Append the records to NODE.jsonl; one write, so that lines of several hooks do not mix.

    Only root and the group of ``slurm_user``, if it is given, can read the file: a site may hide
    jobs from other users.
    """
    if not records:
        return
    os.makedirs(folder, mode=0o755, exist_ok=True)
    file = os.path.join(folder, f"{records[0]['node']}.jsonl")
    text = "".join(to_json(record) + "\n" for record in records)
    handle = _open(file)
    try:
        _hide(handle, slurm_user)
        if os.fstat(handle).st_size > rotate_bytes and _rotated(file, handle, notes):
            os.close(handle)
            handle = _open(file)
            _hide(handle, slurm_user)
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _open(file: str) -> int:
    """Open for appending; others may write in the folder, so links and their files are refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(file, flags, 0o644)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(handle)
        raise PermissionError(errno.EPERM, "is not a file of ours", file)
    return handle


def _hide(handle: int, slurm_user: str) -> None:
    """Leave a file to its owner and the group of a user, if this is root and the user is known."""
    if not slurm_user or os.geteuid() != 0:
        return
    try:
        known = pwd.getpwuid(int(slurm_user)) if slurm_user.isdecimal() else None
        group = (known or pwd.getpwnam(slurm_user)).pw_gid
        found = os.fstat(handle)
        if found.st_gid != group:
            os.fchown(handle, -1, group)
        if stat.S_IMODE(found.st_mode) != 0o640:
            os.fchmod(handle, 0o640)
    except (KeyError, ValueError, OverflowError, OSError):
        pass  # on a file system where root is no root, the file stays as it is


def _rotated(file: str, handle: int, notes: Notes) -> bool:
    """Move a spool file aside; False: it stays the one to write to.

    The lock is that of the notes, because every user may read the spool file, and so hold a lock on
    it. A hook that writes to the old file loses nothing: the reader still looks at its end.
    """
    with notes.alone(0.0) as alone:
        try:
            if not alone or not os.path.samestat(os.fstat(handle), os.lstat(file)):
                return False
            os.replace(file, f"{file}.1")
        except OSError:
            return False
    return True


def syslog(lines: Iterable[str]) -> None:
    """Tell the node's log."""
    import syslog as log

    log.openlog("gpu-aware-clock", 0, log.LOG_DAEMON)
    for line in lines:
        log.syslog(log.LOG_INFO, line[:_LONGEST_LINE])
