"""What the agent of a node is told: work of hooks, where an agent runs, and orders of the selector.

Starting Python costs a hook more than its work.
A hook writes one small file and sends the agent SIGUSR1. It waits until the agent has removed the
file only if a clock must change, and for some seconds at most. ``agent`` among the accounts names
the process that hears (number, start time), which the hook compares with ``/proc``; without one it
does the work itself, and so it does if the agent has not begun in time, or dies. A file that the
agent has begun ends in ``.taken``. What an agent that died has left is done by the next one.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from slurm_gpu_aware.clocks.accounts import INBOX, Account, Accounts, JobMap
from slurm_gpu_aware.clocks.hooks import Hook
from slurm_gpu_aware.clocks.job import Record
from slurm_gpu_aware.clocks.notes import Notes
from slurm_gpu_aware.files import first_bytes, open_folder
from slurm_gpu_aware.node_orders import MOST_BYTES, Order, OrderError, Orders

_AGENT = "agent"
_LONGEST = 1200  # Bytes of a file; the scripts write no more.
_UNFINISHED_S = 60.0
_TAKEN = ".taken"
_KINDS = ("epilog", "prolog")
_VARIABLES = (
    "SLURM_JOB_RESTART_COUNT",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_EXTRA",
    "SLURM_CONF",
    "SLURMD_NODENAME",
)
"""Of a line, in this order; ``-`` for none, and ``.`` at the end."""


@dataclass(frozen=True)
class Word:
    """What one hook left, at a Unix time."""

    name: str
    at: float
    kind: str
    env: Mapping[str, str]


class Inbox:
    """The folder of such files, beside the accounts. Its methods raise OSError."""

    def __init__(self, accounts: str) -> None:
        self._accounts = accounts
        self._folder = os.path.join(accounts, INBOX)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """While hooks leave their accounts to this process, which blocks SIGUSR1."""
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        with open(f"/proc/{os.getpid()}/stat", encoding="ascii", errors="replace") as stream:
            started = stream.read().rpartition(") ")[2].split()[19]
        name = os.path.join(self._accounts, _AGENT)
        with open(f"{name}.new", "w", encoding="ascii") as stream:
            stream.write(f"{os.getpid()} {started}\n")
        os.replace(f"{name}.new", name)
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)

    def has_ended(self, job_id: str) -> bool:
        """Whether the epilog of a job has left its work here."""
        files = (self._path(f"{job_id}.epilog{end}") for end in ("", _TAKEN))
        return any(map(os.path.exists, files))

    def take(self, now: float) -> Iterator[Word]:
        """What hooks left, in their order; each is gone once the next is asked for."""
        if not os.path.isdir(self._folder):
            return
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                kind = entry.name.removesuffix(_TAKEN).partition(".")[2]
                with suppress(OSError):  # its hook does it itself, or it is no file of ours
                    at = entry.stat(follow_symlinks=False).st_mtime
                    if kind in _KINDS:
                        found.append((at, kind, entry.name))
                    elif now - at >= _UNFINISHED_S:
                        os.unlink(entry)
        for at, kind, name in sorted(found, key=_order(found)):
            env = self._read(name)
            if env is None and now - at < _UNFINISHED_S:
                continue  # it is being written
            taken = name.removesuffix(_TAKEN) + _TAKEN
            try:
                os.rename(self._path(name), self._path(taken))
            except FileNotFoundError:
                continue  # its hook does it itself
            try:
                # The hook of a prolog that an agent had begun when it died has done it itself.
                if env is not None and not (kind == "prolog" and name == taken):
                    yield Word(name, at, kind, env)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(taken))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _read(self, name: str) -> dict[str, str] | None:
        """The hook's variables; None: the file is not whole, or gone."""
        try:
            words = first_bytes(self._path(name), _LONGEST).decode("ascii", "replace").split(" ")
        except OSError:
            return None
        if len(words) != len(_VARIABLES) + 1 or words[-1] != ".\n":
            return None
        given = dict(zip(_VARIABLES, words, strict=False))
        env = {key: value for key, value in given.items() if value != "-"}
        return env | {"SLURM_JOB_ID": name.partition(".")[0]}


def _order(
    found: Iterable[tuple[float, str, str]],
) -> Callable[[tuple[float, str, str]], tuple[float, bool, int, str, bool]]:
    """Key by time: within a tick of the clock a job ends before others begin, and after itself."""
    begun = {(at, name.partition(".")[0]) for at, kind, name in found if kind == "prolog"}

    def key(entry: tuple[float, str, str]) -> tuple[float, bool, int, str, bool]:
        at, kind, name = entry
        job = name.partition(".")[0]
        return at, (at, job) in begun, len(job), job, kind == "epilog"

    return key


def hear(
    inbox: Inbox,
    notes: Notes,
    accounts: Accounts,
    clock: Callable[[], float],
    complain: Callable[[str], object],
    job_map: JobMap | None = None,
) -> list[Record]:
    """Do what hooks have left to us; return their records. Raises OSError."""
    records: list[Record] = []
    for word in inbox.take(clock()):
        try:
            hook = Hook(word.env, notes, clock(), accounts, heard_at=word.at, job_map=job_map)
            hook.prolog() if word.kind == "prolog" else hook.epilog()
        except Exception as exc:  # the others' work is done all the same
            complain(f"{word.name}: {type(exc).__name__}: {exc}")
            continue
        records += hook.records
        for text in hook.said:
            complain(f"{word.name}: {text}")
    return records


_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
Target = tuple[str, int, int]  # (job, MHz, W; 0: the default clock, the site's own power limit).


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
