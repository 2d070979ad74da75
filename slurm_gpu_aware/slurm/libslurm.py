"""Libslurm: loads Slurm's library, calls it with a time limit, splits its replies into records.

``_libslurm`` is compiled when the package is installed (`libslurm_build`). Every call runs in a
thread of its own, outside Python's global lock, so that a slurmctld that hangs never delays the
caller beyond its time limit.
"""

import _thread
import errno
import importlib
import os
import re
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.libslurm_fields import RecordKind

CALLS = ("answered", "refused", "failed", "timeout")
"""Outcomes of a call; ``failed``: slurmctld was not reached. A call that was not waited for any
longer counts as ``timeout``, and once more when it ends."""
UPDATES = ("done", "refused", "unknown")  # Outcomes of an update; ``unknown``: there was no answer.
_T = TypeVar("_T")
_CONF_FILES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/usr/local/etc/slurm.conf")
_LOG_PREFIX = re.compile(r"^\S+: (?:(?:error|fatal): )?")  # Start of each line that libslurm logs.
_INIT_S = 10.0
"""Time limit of reading the configuration; without one libslurm tries for a minute, then exits."""
_SYSTEM = (
    *("EADDRNOTAVAIL", "EAGAIN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH"),
    *("EINTR", "EIO", "ENETUNREACH", "ENOMEM", "ENOTCONN", "EPIPE", "ETIMEDOUT"),
)
_UNREACHED = {getattr(errno, name) for name in _SYSTEM} | {*range(1000, 2000), *range(5000, 7000)}
"""Error numbers of the system, and those of communication, sockets and authentication
(``slurm_errno.h``): slurmctld was not reached or refused the connection."""
_MOST_WAITING = 32
"""Calls that may be open at a time, also those that timed out; further ones fail at once."""


class CallCounts:
    """Counts since the start; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter(dict.fromkeys(CALLS, 0))
        self._updates: Counter[str] = Counter(dict.fromkeys(UPDATES, 0))

    def call(self, outcome: str) -> None:
        """Count a call by its outcome, one of `CALLS`."""
        with self._lock:
            self._calls[outcome] += 1

    def updated(
        self, number: int, work: Callable[[], Iterable[Mapping[str, str]]]
    ) -> dict[str, str]:
        """Do work that sends so many updates, and count them; return refused job id -> why.

        ``work`` gives the refused ones in parts. If it raises, what became of them is not known.
        """
        refused: dict[str, str] | None = None
        try:
            refused = {job_id: why for part in work() for job_id, why in part.items()}
            return refused
        finally:
            refusals = len(refused or ())
            done, unknown = (0, number) if refused is None else (max(0, number - refusals), 0)
            with self._lock:
                self._updates.update({"done": done, "refused": refusals, "unknown": unknown})

    @property
    def of_calls(self) -> Mapping[str, int]:
        """Outcome -> calls."""
        with self._lock:
            return dict(self._calls)

    @property
    def of_updates(self) -> Mapping[str, int]:
        """Outcome -> updates."""
        with self._lock:
            return dict(self._updates)


class SlurmError(SourceError):
    """Slurm refused a call, or did not answer."""

    def __init__(self, text: str, code: int, *, refused: bool = False) -> None:
        super().__init__(text)
        self.code = code
        """Slurm's error number (``slurm_errno.h``) or the system's."""
        self.refused = refused
        """slurmctld has refused; otherwise the request may have been carried out."""


class Call(Generic[_T]):
    """A work under way, with its time limit."""

    def __init__(self, limit_s: float, counts: CallCounts | None = None) -> None:
        self._limit_s = limit_s
        self._counts = counts or CallCounts()
        self._until = time.monotonic() + limit_s
        self.done = threading.Event()
        self.outcome: list[_T] = []
        self.failure: BaseException | None = None

    def result(self) -> _T:
        """Its result. Raises SourceError, also if it takes too long."""
        if not self.done.wait(max(0.0, self._until - time.monotonic())):
            self._counts.call("timeout")
            raise SlurmError(f"Slurm: no answer within {self._limit_s:g} s", errno.ETIMEDOUT)
        if self.failure is not None:
            raise self.failure
        return self.outcome[0]


class Libslurm:
    """The library, loaded once per process; ``timeout_s``: how long a call may take.

    Raises SourceError if it is not built, was built for another release, or cannot read Slurm's
    configuration.
    """

    def __init__(self, timeout_s: float) -> None:
        self.ffi, self.lib = _load()
        self._timeout_s = timeout_s
        self._waiting = threading.Semaphore(_MOST_WAITING)
        self.counts = CallCounts()

    def records(self, function: str, *arguments: object) -> list[bytes]:
        """Records that a function returns, not yet decoded. Raises SourceError."""
        return list(records(self.reply(function, *arguments)))

    def reply(self, function: str, *arguments: object) -> bytes:
        """Reply of a function. Raises SourceError."""
        return self.within(lambda: self.ask(function, *arguments))

    def ask(self, function: str, *arguments: object) -> bytes:
        """Reply of a function, without a time limit. Raises SlurmError."""
        reply = self.ffi.new("aware_reply *")
        code = getattr(self.lib, function)(*arguments, reply)
        data = self.take(reply)
        self.check(code, function)
        return data

    def take(self, reply: Any) -> bytes:
        """The bytes of an ``aware_reply``; frees it."""
        try:
            return bytes(self.ffi.buffer(reply.data, reply.size)) if reply.size else b""
        finally:
            self.lib.aware_free(reply)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns only whether it succeeded. Raises SourceError."""
        self.within(lambda: self.check(getattr(self.lib, function)(*arguments), function))

    def check(self, code: int, what: str) -> None:
        """Raise SlurmError unless ``code`` is 0."""
        if code:
            name = what.removeprefix("aware_").replace("_", " ")
            # Other numbers are answers, also those of a site's job_submit plugin: -1, 1, ...
            refused = code not in _UNREACHED and code != self.lib.ESLURM_IN_STANDBY_MODE
            text = f"Slurm, {name}: {self.text_of(code)}"
            raise SlurmError(text, code, refused=refused)

    def text_of(self, code: int) -> str:
        """Slurm's sentence for an error number."""
        text: bytes = self.ffi.string(self.lib.slurm_strerror(code))
        return text.decode(errors="replace")

    def within(
        self, work: Callable[[], _T], extra_s: float = 0.0, given_up: threading.Event | None = None
    ) -> _T:
        """Result of ``work`` within the time limit plus ``extra_s``.

        Work that takes longer goes on in its thread, and its present request can still be carried
        out; ``given_up`` is set, so that no other follows. Raises SourceError.
        """
        return self.together([work], extra_s, given_up)[0]

    def together(
        self,
        works: Sequence[Callable[[], _T]],
        extra_s: float = 0.0,
        given_up: threading.Event | None = None,
    ) -> list[_T]:
        """Results of works that are done at the same time, each as `within` does it."""
        calls: list[Call[_T]] = []
        try:
            calls += (self.begin(work, extra_s) for work in works)
            return [call.result() for call in calls]
        finally:
            if given_up is not None and not all(call.done.is_set() for call in calls):
                given_up.set()

    def begin(self, work: Callable[[], _T], extra_s: float = 0.0) -> Call[_T]:
        """Begin a work in a thread of its own. Raises SourceError if too many are open."""
        if not self._waiting.acquire(blocking=False):
            raise SlurmError("Slurm does not answer: too many calls still wait", errno.EAGAIN)
        call: Call[_T] = Call(self._timeout_s + extra_s, self.counts)

        def run() -> None:
            try:
                call.outcome.append(work())
                self.counts.call("answered")
            except BaseException as exc:
                call.failure = exc
                refused = isinstance(exc, SlurmError) and exc.refused
                self.counts.call("refused" if refused else "failed")
            finally:
                self._waiting.release()
                call.done.set()

        # Thread.start would wait until the thread runs, which takes long on a busy machine.
        _thread.start_new_thread(run, ())
        return call


def records(data: bytes) -> Iterator[bytes]:
    """The records of a reply, each preceded by its length."""
    at, end = 0, len(data)
    while at < end:
        (length,) = struct.unpack_from("=I", data, at)
        at += 4
        yield data[at : at + length]
        at += length


def decode(kind: RecordKind, record: bytes) -> Mapping[str, Any]:
    """Fields of a record: numbers as int, texts as str with surrogates for invalid UTF-8."""
    count = len(kind.numbers)
    numbers = struct.unpack_from(f"={count}q", record)
    texts = record[8 * count :].decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(kind.numbers + kind.texts, (*numbers, *texts), strict=False))


@lru_cache(maxsize=1)
def _load() -> tuple[Any, Any]:
    """cffi's ``ffi`` and ``lib``, ready for calls. Raises SourceError."""
    flags = sys.getdlopenflags()
    try:
        # Slurm's plugins need the library's symbols.
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
        module = importlib.import_module("slurm_gpu_aware.slurm._libslurm")
    except ModuleNotFoundError:
        raise SourceError(
            "the client of Slurm's library is not built: install Slurm's headers and a compiler"
            " (Debian: libslurm-dev and gcc, RPM: slurm-devel and gcc) and install slurm-gpu-aware"
            " again"
        ) from None
    except ImportError as exc:
        raise SourceError(
            "the client was built for another release of Slurm than this host has; install"
            f" slurm-gpu-aware again ({exc})"
        ) from None
    finally:
        sys.setdlopenflags(flags)
    # Otherwise libslurm cuts an array's list of tasks to 64 characters.
    os.environ["SLURM_BITSTR_LEN"] = "0"
    _check_configuration(module)
    module.lib.slurm_init(module.ffi.NULL)
    return module.ffi, module.lib


def _check_configuration(module: Any) -> None:
    """Read Slurm's configuration in a child first: on an error libslurm ends the process."""
    named = os.environ.get("SLURM_CONF")
    if named and not Path(named).exists():
        raise SourceError(f"SLURM_CONF={named} does not exist")
    if not named and not any(Path(name).exists() for name in _CONF_FILES):
        raise SourceError(
            f"no slurm.conf at {', '.join(_CONF_FILES)}; set SLURM_CONF if it is elsewhere"
        )
    with open(os.memfd_create("libslurm"), "rb+") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 2)
            module.lib.slurm_init(module.ffi.NULL)
            os._exit(0)
        end = time.monotonic() + _INIT_S
        while not (done := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                done = os.waitpid(child, 0)
                break
            time.sleep(0.001)
        if done[1]:
            output.seek(0)
            said = output.read(4096).decode(errors="replace").splitlines()
            reason = "; ".join(_LOG_PREFIX.sub("", line) for line in said)
            why = reason[:300] or f"not read within {_INIT_S:g} s"
            raise SourceError(f"Slurm's configuration cannot be read: {why}")
