"""Lock files that only their owner can open: a user who can open one can hold its lock.

Standard library only, for the hooks of `clocks`.
"""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["open_lock"]


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
