"""Notes of locked clocks and power limits: one small file per GPU, ``gpu`` and its index.

They lie in a folder that only its owner (root) can enter; the accounts of the GPUs' jobs lie in
another one (`accounts`). ``50-gpu-aware``, the prolog and epilog scripts, read them too: by them
they know whether there is anything to do at all. A note is one line: job, ``running`` or ``ended``,
method, time of a failed try, power limits; ``-`` where it is not known.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from slurm_gpu_aware.files import first_bytes, open_folder, open_lock, put_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slurm_gpu_aware.clocks.driver import Result

_GPU = "gpu"
_LOCK = ".lock"
_NAMES = (_GPU, f".{_GPU}", _LOCK, "orders", ".orders", "inbox", "agent")
"""Starts of the names of our files."""
_LONGEST = 200  # Bytes of a file.
NO_JOB = "0"  # Job of a note that cannot be read.
LIMIT = "limit"  # Method of a note under which only a power limit is set, and no clock.
_SAME_MW = 1000  # Limits that differ by less are one: drivers may round.
_MOST_LIMITS = 8
"""Limits of a note; more come only of a GPU that answers nothing, and the oldest are dropped."""


Limits = tuple[int, ...]  # Power limits of a GPU, mW.


def words_in(folder: int | None, name: str, longest: int, errors: str = "strict") -> list[str]:
    """Words of a file of ``longest`` bytes at most; none if it cannot be read.

    ``errors``: as of ``bytes.decode``.
    """
    try:
        return first_bytes(name, longest, folder).decode("ascii", errors).split()
    except (OSError, ValueError):
        return []


class NoteFolder:
    """Files ``gpu`` and the GPU's index, of one line each, written in one step."""

    def __init__(self, folder: str) -> None:
        """Make the folder, or take others' rights from it. If that fails, :meth:`put` says so."""
        self.folder = folder
        self._fd: int | None = None
        self._lock: int | None = None
        self._wrong: OSError | None = None
        try:
            self._fd = _own_folder(folder)
            self._lock = open_lock(_LOCK, dir_fd=self._fd)
        except OSError as exc:
            self._wrong = exc

    def put(self, index: int, line: str) -> None:
        """Write a GPU's file. Raises OSError."""
        self.keep(f"{_GPU}{index}", line)

    def keep(self, name: str, line: str) -> None:
        """Write a file of another name. Raises OSError."""
        if self._wrong is not None:
            raise self._wrong
        put_small(name, f"{line}\n".encode(), 0o600, self._fd)

    def forget(self, index: int) -> None:
        """Drop a GPU's file, if there is one."""
        if self._fd is not None:
            try:
                os.unlink(f"{_GPU}{index}", dir_fd=self._fd)
            except OSError:
                pass

    def words(self) -> dict[int, list[str]]:
        """GPU index -> words of its file; none if it cannot be read."""
        if self._fd is None:
            return {}
        found: dict[int, list[str]] = {}
        for name in os.listdir(self._fd):
            digits = name.removeprefix(_GPU)
            if digits != name and digits.isascii() and digits.isdecimal():
                found[int(digits)] = self._read(name)
        return found

    def numbers(self, name: str) -> list[int]:
        """The numbers in a file of another name; empty: there is none."""
        words = self._read(name) if self._fd is not None else []
        return [int(word) for word in words if word.isdecimal()]

    def _read(self, name: str) -> list[str]:
        return words_in(self._fd, name, _LONGEST)

    def alone(self, wait_s: float) -> Held:
        """While no other hook is at work here; False: some were, for as long as we waited."""
        return Held(self._lock, fcntl.LOCK_EX, wait_s)

    def together(self, wait_s: float) -> Held:
        """While no hook is :meth:`alone`; False: one was, for as long as we waited."""
        return Held(self._lock, fcntl.LOCK_SH, wait_s)


class Held:
    """A lock for a ``with`` block; the value of the block says whether the lock was got.

    Without a lock file (None), or on a file system without locks, nothing is held off.
    """

    def __init__(self, handle: int | None, kind: int, wait_s: float) -> None:
        self._handle = handle
        self._kind = kind
        self._wait_s = wait_s

    def __enter__(self) -> bool:
        end = time.monotonic() + self._wait_s
        while self._handle is not None:
            try:
                fcntl.flock(self._handle, self._kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    return False
                time.sleep(0.02)
            except OSError:
                break
        return True

    def __exit__(self, *_: object) -> None:
        # By hand: a child that hangs in the driver has this handle, too.
        if self._handle is not None:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_UN)
            except OSError:
                pass


def _own_folder(path: str) -> int:
    """Make a folder, or mend one, so that it is ours and 0700; return its file descriptor.

    Raises OSError, also for a folder that holds other files, which others may need.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    folder = open_folder(path)
    try:
        status = os.fstat(folder)
        ours = status.st_uid == os.geteuid()
        if not ours or stat.S_IMODE(status.st_mode) != 0o700:
            if not all(name.startswith(_NAMES) for name in os.listdir(folder)):
                raise PermissionError(errno.EPERM, "holds files of others; it takes one of its own")
            if not ours:
                os.fchown(folder, os.geteuid(), -1)
            os.fchmod(folder, 0o700)
    except BaseException:
        os.close(folder)
        raise
    return folder


def is_ours(present_mw: int, limits_mw: Limits) -> bool:
    """Whether a GPU's limit is one of those that we set; else the site has set it since."""
    return any(abs(present_mw - own) < _SAME_MW for own in limits_mw[1:])


def lowered(noted_mw: Limits, present_mw: int, limit_w: int) -> Limits:
    """What a note must hold before a limit is set: the last one is to be set.

    The site's own limit is the present one, unless we have set that; ours is never above it.
    """
    before = noted_mw if is_ours(present_mw, noted_mw) else ()
    site_mw = before[0] if before else present_mw
    own = [mw for mw in before[1:] if mw != 1000 * limit_w]
    return (site_mw, *own[-_MOST_LIMITS:], min(1000 * limit_w, site_mw))


def limits_to_note(
    read: Iterable[Result], noted: Mapping[int, Limits], limit_w: int
) -> dict[int, Limits]:
    """GPU -> what its note must hold (`lowered`); one whose limit was not read is left out."""
    return {
        one.index: lowered(noted.get(one.index, ()), one.limit_mw, limit_w)
        for one in read
        if one.limit_mw is not None
    }


class Note:
    """Note of a locked GPU."""

    def __init__(
        self,
        job_id: str,
        method: str = "",
        ended: bool = False,
        tried_at: float | None = None,
        limits_mw: Limits = (),
    ) -> None:
        self.job_id = job_id
        self.method = method
        """``locked``, (before Volta) ``application``, or ``limit``; empty: not known (yet)."""
        self.ended = ended
        """The job's epilog ran: the next hook resets a clock that is still locked."""
        self.tried_at = tried_at
        """When a hook of another job tried to reset it, in vain. Units: Unix seconds."""
        self.limits_mw = limits_mw
        """The site's own power limit, then those that we may have set; empty: none."""


class Notes(NoteFolder):
    """The notes of a node.

    GPUs belong to one job at a time, so no two hooks write one note; only a hook that looks after
    what other jobs left behind must be :meth:`alone`, and so must the agent.
    """

    def write(self, index: int, note: Note) -> None:
        """Note a lock: before it is made, and again when it is known how. Raises OSError."""
        state = "ended" if note.ended else "running"
        line = f"{note.job_id} {state} {note.method or '-'} {note.tried_at or '-'}"
        limits = ":".join(map(str, note.limits_mw))
        self.put(index, f"{line} {limits}" if limits else line)

    def all(self) -> dict[int, Note]:
        """GPU index -> its note."""
        return {index: _note(words) for index, words in self.words().items()}


def _note(words: list[str]) -> Note:
    """One that cannot be read belongs to no job: any hook resets that GPU."""
    try:
        job_id, state, method, tried_at, *limits = words
        return Note(
            job_id,
            method if method in ("locked", "application", LIMIT) else "",
            state != "running",
            None if tried_at == "-" else float(tried_at),
            tuple(int(mw) for mw in limits[0].split(":")) if limits else (),
        )
    except ValueError:
        return Note(NO_JOB, ended=True)
