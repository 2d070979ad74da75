"""Slurm's own library: loading it, calling it with a time limit, records out of what it returns.

``_libslurm`` is compiled when the package is installed (`libslurm_build`). Every call runs in a
thread of its own, outside Python's global lock, so that a slurmctld that hangs never holds the
caller longer than its time limit.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.libslurm_fields import RecordKind

__all__ = ["Libslurm", "SlurmError", "decode", "records"]

_T = TypeVar("_T")

_LENGTH = Struct("=I")
_CONF_FILES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/usr/local/etc/slurm.conf")
_SAID = re.compile(r"^\S+: (?:(?:error|fatal): )?")
"""What libslurm puts in front of each line that it logs."""
_INIT_S = 10.0
"""How long libslurm may read its configuration; without one it tries for a minute, then exits."""
_UNREACHED = frozenset(
    getattr(errno, name)
    for name in (
        *("EADDRNOTAVAIL", "EAGAIN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH"),
        *("EINTR", "EIO", "ENETUNREACH", "ENOMEM", "ENOTCONN", "EPIPE", "ETIMEDOUT"),
    )
)
_UNREACHED_RANGES = (range(1000, 2000), range(5000, 7000))
"""Error numbers of a slurmctld that was not reached or does not know us: the system's, and those of
communication, sockets and authentication in ``slurm_errno.h``."""
_MOST_WAITING = 16
"""Calls that were given up and have not returned; with more, slurmctld is not asked any more."""
_NOT_BUILT = (
    "the client of Slurm's library is not built: install Slurm's headers and a compiler (Debian:"
    " libslurm-dev and gcc, RPM: slurm-devel and gcc) and install slurm-gpu-aware again"
)
_OTHER_RELEASE = (
    "the client was built for another release of Slurm than this host has; install slurm-gpu-aware"
    " again ({})"
)


class SlurmError(SourceError):
    """Slurm refused, or could not be asked."""

    def __init__(self, text: str, code: int, *, refused: bool = False) -> None:
        super().__init__(text)
        self.code = code
        """Slurm's error number (``slurm_errno.h``) or the system's."""
        self.refused = refused
        """slurmctld has answered, and said no; else it may or may not have done what was asked."""


class Libslurm:
    """The library, loaded once per process.

    Parameters
    ----------
    timeout_s : how long a call may take.

    Raises
    ------
    SourceError
        It is not built, built for another release, or Slurm's configuration cannot be read.
    """

    def __init__(self, timeout_s: float) -> None:
        self.ffi, self.lib = _load()
        self._timeout_s = timeout_s
        self._waiting = threading.Semaphore(_MOST_WAITING)

    def records(self, kind: RecordKind, function: str, *arguments: object) -> list[bytes]:
        """Records that a function returns, not yet decoded. Raises SourceError."""
        return list(records(self.reply(function, *arguments)))

    def reply(self, function: str, *arguments: object) -> bytes:
        """What a function returns. Raises SourceError."""

        def ask() -> bytes:
            reply = self.ffi.new("aware_reply *")
            code = getattr(self.lib, function)(*arguments, reply)
            data = self.take(reply)
            self.check(code, function)
            return data

        return self.within(ask)

    def take(self, reply: Any) -> bytes:
        """The bytes of an ``aware_reply``, which is freed."""
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
            # All else is an answer, also what a site's job_submit plugin returns: -1, 1, ...
            unreached = code in _UNREACHED or any(code in numbers for numbers in _UNREACHED_RANGES)
            refused = not unreached and code != self.lib.ESLURM_IN_STANDBY_MODE
            text = f"Slurm, {name}: {self.text_of(code)}"
            raise SlurmError(text, code, refused=refused)

    def text_of(self, code: int) -> str:
        """Slurm's sentence for an error number."""
        text: bytes = self.ffi.string(self.lib.slurm_strerror(code))
        return text.decode(errors="replace")

    def within(
        self, work: Callable[[], _T], extra_s: float = 0.0, given_up: threading.Event | None = None
    ) -> _T:
        """What ``work`` returns, or raises, within the time limit and ``extra_s``.

        Work that takes longer goes on by itself: the request that is under way may still be
        carried out. ``given_up`` is set then, so that no other follows. Raises SourceError.
        """
        limit_s = self._timeout_s + extra_s
        if not self._waiting.acquire(blocking=False):
            raise SlurmError("Slurm does not answer: too many calls still wait", errno.EAGAIN)
        outcome: list[_T] = []
        failure: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                outcome.append(work())
            except BaseException as exc:
                failure.append(exc)
            finally:
                self._waiting.release()
                done.set()

        threading.Thread(target=run, name="libslurm", daemon=True).start()
        if not done.wait(limit_s):
            if given_up is not None:
                given_up.set()
            raise SlurmError(f"Slurm: no answer within {limit_s:g} s", errno.ETIMEDOUT)
        if failure:
            raise failure[0]
        return outcome[0]


def records(data: bytes) -> Iterator[bytes]:
    """The records of a reply, each preceded by its length."""
    at, end, unpack = 0, len(data), _LENGTH.unpack_from
    while at < end:
        (length,) = unpack(data, at)
        at += 4
        yield data[at : at + length]
        at += length


def decode(kind: RecordKind, record: bytes) -> Mapping[str, Any]:
    """Fields of a record: numbers as int, texts as str (bytes that are not UTF-8 as surrogates)."""
    numbers = _numbers(len(kind.numbers))
    texts = record[numbers.size :].decode("utf-8", "surrogateescape").split("\0")
    return dict(
        zip(kind.numbers + kind.texts, (*numbers.unpack_from(record), *texts), strict=False)
    )


@lru_cache(maxsize=16)
def _numbers(count: int) -> Struct:
    return Struct(f"={count}q")


@lru_cache(maxsize=1)
def _load() -> tuple[Any, Any]:
    """cffi's ``ffi`` and ``lib``, ready for calls. Raises SourceError."""
    flags = sys.getdlopenflags()
    try:
        # Slurm's plugins look for the library's own symbols.
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
        module = importlib.import_module("slurm_gpu_aware.slurm._libslurm")
    except ModuleNotFoundError:
        raise SourceError(_NOT_BUILT) from None
    except ImportError as exc:
        raise SourceError(_OTHER_RELEASE.format(exc)) from None
    finally:
        sys.setdlopenflags(flags)
    # libslurm shortens an array's list of tasks to 64 characters otherwise.
    os.environ["SLURM_BITSTR_LEN"] = "0"
    _check_conf_file()
    _try_in_child(module)
    module.lib.slurm_init(module.ffi.NULL)
    return module.ffi, module.lib


def _check_conf_file() -> None:
    named = os.environ.get("SLURM_CONF")
    if named and not Path(named).exists():
        raise SourceError(f"SLURM_CONF={named} is not there")
    if not named and not any(Path(name).exists() for name in _CONF_FILES):
        raise SourceError(
            f"no slurm.conf at {', '.join(_CONF_FILES)}; set SLURM_CONF where it is elsewhere"
        )


def _try_in_child(module: Any) -> None:
    """Let a child read Slurm's configuration first: libslurm ends the process if it cannot.

    Raises SourceError with what libslurm said.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 2)
        module.lib.slurm_init(module.ffi.NULL)
        os._exit(0)
    os.close(write)
    said, ended = _until_closed(read, time.monotonic() + _INIT_S)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status:
        lines = [_SAID.sub("", line) for line in said.decode(errors="replace").splitlines()]
        reason = "; ".join(lines) if lines else f"not read within {_INIT_S:g} s"
        raise SourceError(f"Slurm's configuration cannot be read: {reason[:300]}")


def _until_closed(read: int, until: float) -> tuple[bytes, bool]:
    """(what came through a pipe, whether its other end was closed in time)."""
    said = b""
    try:
        while (left_s := until - time.monotonic()) > 0:
            if not select.select([read], [], [], left_s)[0]:
                break
            part = os.read(read, 4096)
            if not part:
                return said, True
            said = (said + part)[-4096:]
        return said, False
    finally:
        os.close(read)
