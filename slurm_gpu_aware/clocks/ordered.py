"""Orders at a compute node: the reader of trusted files, and what GPUs should be set to."""

import errno
import os
import stat
from collections.abc import Mapping

from slurm_gpu_aware.clocks.accounts import Account
from slurm_gpu_aware.files import open_folder
from slurm_gpu_aware.node_orders import MOST_BYTES, Order, OrderError, Orders

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
Target = tuple[str, int, int]
"""(job, MHz, W; 0: the default clock, the site's own power limit)."""


def read_trusted(path: str, owners: frozenset[int], top: str = "/") -> bytes | None:
    """Bytes of a file (one more than orders may have, at most); None: there is no such file.

    File and every folder from ``top`` on must belong to one of these user ids and be writable by
    no other user; links are not followed. What is checked is what was opened. Raises OrderError.
    """
    below = os.path.relpath(path, top)
    if not os.path.isabs(path) or below.startswith(".."):
        raise OrderError(f"{path} is not below {top}")
    *folders, name = below.split("/")
    here = top
    try:
        handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check(handle, here, owners)
            for part in folders:
                here = os.path.join(here, part)
                handle = _enter(handle, part)
                _check(handle, here, owners)
            return _read(handle, name, path, owners)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except OSError as exc:
        link = exc.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
        raise OrderError(f"{here}: {'is a link' if link else exc.strerror}") from None


def _enter(handle: int, name: str) -> int:
    """Open a folder in a folder, which is closed."""
    inner = open_folder(name, handle)
    os.close(handle)
    return inner


def _read(folder: int, name: str, path: str, owners: frozenset[int]) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(name, flags, dir_fd=folder)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise OrderError(f"{path}: is a link") from None
        raise
    try:
        _check(handle, path, owners, regular=True)
        parts = []
        left = MOST_BYTES + 1
        while left and (part := os.read(handle, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def _check(handle: int, path: str, owners: frozenset[int], *, regular: bool = False) -> None:
    found = os.fstat(handle)
    if regular and not stat.S_ISREG(found.st_mode):
        raise OrderError(f"{path}: is not a plain file")
    if found.st_uid not in owners:
        raise OrderError(f"{path}: belongs to user {found.st_uid}, not to root or SlurmUser")
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise OrderError(f"{path}: others may write to it")


def target_of(order: Order, account: Account) -> Target:
    """What an order says for a GPU; without a limit that of the job's start counts."""
    limit_w = account.asked[1] if order.limit_w is None else order.limit_w
    return account.job_id, order.mhz, limit_w


def kept_low(orders: Orders, accounts: Mapping[int, Account]) -> dict[int, Target]:
    """GPU -> of the order and the start of the job that holds it the lower clock and limit."""
    kept = {}
    for order in orders.orders:
        for index in order.gpus:
            account = accounts.get(index)
            if account is not None and account.job_id == str(order.job):
                _, *ordered = target_of(order, account)
                mhz, limit_w = (
                    min(filter(None, both), default=0)
                    for both in zip(ordered, account.asked, strict=True)
                )
                kept[index] = (account.job_id, mhz, limit_w)
    return kept
