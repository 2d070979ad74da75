"""Orders for the clocks of running jobs: the file that ``gpu-aware clockd`` obeys.

    gpu-aware-orders/1 SEQ VALID_UNTIL
    JOBID MHZ INDEX+INDEX

The selector writes NODE.orders in one step, on a file system that the node sees. While orders are
valid, a lower SEQ is that of an older file. VALID_UNTIL is in Unix seconds, MHZ 0 is the default
clock. Only what root or SlurmUser alone could have written is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass

MOST_BYTES = 1 << 16
MOST_ORDERS = 1024
LONGEST_S = 3600.0
"""Orders that claim to be valid for longer are refused."""
_HEAD = re.compile(rb"gpu-aware-orders/1 ([1-9][0-9]{0,15}) ([1-9][0-9]{0,10})")
_LINE = re.compile(
    rb"([1-9][0-9]{0,11}) (0|[1-9][0-9]{2,4}) ((?:[0-9]{1,4})(?:\+[0-9]{1,4}){0,63})"
)
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class OrderError(Exception):
    """Orders that are not obeyed; the text says why."""


@dataclass(frozen=True)
class Order:
    """The clock of one job on this node."""

    job_id: str
    mhz: int
    """SM clock; 0: the default clock."""
    gpus: tuple[int, ...]
    """Slurm's indices, ascending."""


@dataclass(frozen=True)
class Orders:
    """All orders of a node."""

    seq: int
    valid_until: float
    """Unix seconds."""
    orders: tuple[Order, ...]


def parse_orders(text: bytes, now: float) -> Orders:
    """Parse a file's text. Raises OrderError for anything that is not exactly orders."""
    if len(text) > MOST_BYTES:
        raise OrderError(f"more than {MOST_BYTES} bytes")
    if not text.endswith(b"\n"):
        raise OrderError("its last line is not complete")
    head, *lines = text[:-1].split(b"\n")
    start = _HEAD.fullmatch(head)
    if start is None:
        raise OrderError("its first line is not gpu-aware-orders/1 SEQ VALID_UNTIL")
    if len(lines) > MOST_ORDERS:
        raise OrderError(f"more than {MOST_ORDERS} orders")
    valid_until = float(start[2])
    if valid_until > now + LONGEST_S:
        raise OrderError(f"valid for more than {LONGEST_S:.0f} s")
    orders = tuple(_order(number, line) for number, line in enumerate(lines, 2))
    jobs = [order.job_id for order in orders]
    gpus = [gpu for order in orders for gpu in order.gpus]
    if len(set(jobs)) < len(jobs) or len(set(gpus)) < len(gpus):
        raise OrderError("a job or a GPU is named twice")
    return Orders(int(start[1]), valid_until, orders)


def _order(number: int, line: bytes) -> Order:
    found = _LINE.fullmatch(line)
    if found is None:
        raise OrderError(f"line {number} is not JOBID MHZ INDEX+INDEX")
    gpus = tuple(sorted(int(index) for index in found[3].split(b"+")))
    return Order(found[1].decode(), int(found[2]), gpus)


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
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    inner = os.open(name, flags, dir_fd=handle)
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
