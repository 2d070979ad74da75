"""Child processes: a time limit, bounded output, and an end in any case.

Each has a session of its own: Ctrl-C reaches this process only, and at the end all that it started
is killed, so that nothing goes on working on a GPU. Its output is read as it comes; only the end of
it is kept.
"""

import json
import math
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any, Self

from slurm_gpu_aware.errors import SourceError

KEPT_BYTES = 64 << 10  # Bytes of the output that are kept, and limit of a line.
SITE_S = 60.0  # Limit of a command of the site.
_CHECK_S = 0.1
_END_S = 5.0
"""Wait for a process that shall end at most this long: one that hangs in the driver cannot be
killed."""
_LAST_READS = 4
"""Of what the pipes (64 KiB) still hold when the process has ended; others may keep them open."""


class LateError(SourceError):
    """A process did not end in time. ``call``, ``reason``: as errors of a driver have them."""

    call = "timeout"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def run_command_of_site(argv: Sequence[str], environment: Mapping[str, str], given: bytes) -> str:
    """Run a command of the site on some input; return why it failed. It writes to our stderr."""
    try:
        with Child(argv, environment, SITE_S, given=given, output=2) as process:
            for _ in process.pieces():
                pass
    except LateError:
        return f"it did not end within {SITE_S:g} s"
    except SourceError as exc:
        return str(exc)
    return "" if process.code == 0 else f"it ended with {process.code}"


class Child:
    """A process; use as a context manager.

    Parameters
    ----------
    argv : program and arguments, no shell.
    environment : all its variables; None: those of this process.
    limit_s, stopped : what ends :meth:`pieces`.
    given : its whole input; None: what :meth:`write` writes.
    output : where its output and errors go, if not to :meth:`pieces`.
    merged : its errors go into the output.
    signals : sent to it one after the other at the end, each if it goes on; SIGKILL also to what it
        has left. 0: only wait.

    Raises
    ------
    SourceError
        It cannot be run.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        limit_s: float = math.inf,
        stopped: threading.Event | None = None,
        *,
        given: bytes | None = b"",
        output: int | IO[bytes] = subprocess.PIPE,
        merged: bool = False,
        signals: Sequence[int] = (signal.SIGKILL,),
    ) -> None:
        self._name = argv[0].rpartition("/")[2]
        self._stopped = stopped or threading.Event()
        self._signals = signals
        self._tails = {"out": b"", "err": b""}
        self.renew_limit(limit_s)
        apart = output == subprocess.PIPE and not merged
        try:
            with ExitStack() as stack:
                read: int | IO[bytes] = subprocess.PIPE if given is None else subprocess.DEVNULL
                if given:  # a pipe would block us if the process does not read it
                    read = stack.enter_context(tempfile.TemporaryFile())
                    read.write(given)
                    read.seek(0)
                self._process = subprocess.Popen(
                    argv,
                    stdin=read,
                    stdout=output,
                    stderr=subprocess.PIPE if apart else subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except (OSError, ValueError) as exc:  # ValueError: a NUL in an argument
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise SourceError(f"{argv[0]}: cannot be run: {reason}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._signals:
            if self.code is None or number == signal.SIGKILL:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                self._wait(_END_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    @property
    def code(self) -> int | None:
        """Its exit status, negative for a signal; None: it goes on."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """The end of its output."""
        return self._tails["out"].decode(errors="replace")

    @property
    def errors(self) -> str:
        """The end of what it wrote to standard error."""
        return self._tails["err"].decode(errors="replace")

    def renew_limit(self, limit_s: float) -> None:
        """It may go on for ``limit_s`` from now on."""
        self._limit_s = limit_s
        self._ends = time.monotonic() + limit_s

    def write(self, text: str) -> None:
        """Write to its standard input; one that has ended does not read it."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(text.encode())
                self._process.stdin.flush()

    def close_input(self) -> None:
        """End its standard input."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """Let it end by itself, which it does when its input ends; for a moment."""
        self.close_input()
        self._wait(_END_S)

    def pieces(self) -> Iterator[tuple[str, bytes]]:
        """Yield what it writes as it comes, until it ends: (``out`` or ``err``, bytes).

        Between them, at least every tenth of a second, come empty ones. Raises LateError after the
        time limit, SourceError if it was stopped.
        """
        streams = {"out": self._process.stdout, "err": self._process.stderr}
        with selectors.DefaultSelector() as selector:
            for name, stream in streams.items():
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, name)
            reads = _LAST_READS
            while reads:
                ended = self.code is not None
                if not selector.get_map():
                    self._wait(_CHECK_S)
                ready = selector.select(0 if ended or not selector.get_map() else _CHECK_S)
                for key, _ in ready:
                    if part := self._part(key, selector):
                        self._tails[key.data] = (self._tails[key.data] + part)[-KEPT_BYTES:]
                        yield key.data, part
                if ended:
                    reads = reads - 1 if ready else 0
                else:
                    self._check()
                yield "out", b""

    def lines(self) -> Iterator[str]:
        """Yield the lines of its output as they come, until it ends.

        Raises LateError after the time limit, SourceError if it was stopped or failed.
        """
        rest = b""
        for name, piece in self.pieces():
            if name == "out":
                *whole, rest = (rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
                rest = rest[-KEPT_BYTES:]
        if rest:
            yield rest.decode(errors="replace")
        code = self.code or 0
        if code == 0:
            return
        how = f"ended with {code}" if code > 0 else f"was killed by {_signal_name(-code)}"
        text = self.errors or self.output
        said = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        raise SourceError(f"{self._name}: {how}" + (f": {said[:300]}" if said else ""))

    def _check(self) -> None:
        if self._stopped.is_set():
            raise SourceError(f"{self._name}: stopped by a signal")
        if time.monotonic() > self._ends:
            raise LateError(f"{self._name}: no end within {self._limit_s:g} s")

    @staticmethod
    def _part(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> bytes:
        try:
            part = os.read(key.fd, KEPT_BYTES)
        except BlockingIOError:
            return b""
        if not part:
            selector.unregister(key.fileobj)
        return part

    def _wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


def objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects among lines; other programs may print between them."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
