"""A benchmark as a child process: a time limit, bounded output, and an end in any case.

It has a process group of its own, which is killed at the end, so that nothing that it started goes
on working on a GPU. Its output is read as it comes; only the end of it is kept.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from gpu_aware_profile.backends.timing import SickGpuError
from slurm_gpu_aware.errors import SourceError

KEPT_BYTES = 64 << 10
"""Bytes of the output that are kept, and limit of a line."""
_CHECK_S = 0.1
_END_S = 5.0
"""Wait for a killed process at most this long: one that hangs in the driver cannot be killed."""


class Child:
    """A process that measures; use as a context manager.

    ``argv``: program and arguments, no shell. ``environment``: added to that of this process.
    ``merged``: standard error goes into the output.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        limit_s: float,
        stopped: threading.Event,
        merged: bool,
    ) -> None:
        self._name = argv[0].rpartition("/")[2]
        self._limit_s = limit_s
        self._ends = time.monotonic() + limit_s
        self._stopped = stopped
        self._tails: dict[str, bytes] = {"out": b"", "err": b""}
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as exc:
            raise SourceError(f"{argv[0]}: cannot be run: {exc.strerror}") from None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

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
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    @property
    def output(self) -> str:
        """The end of its output."""
        return self._tails["out"].decode(errors="replace")

    def lines(self) -> Iterator[str]:
        """Yield its lines as they come, until it ends.

        Raises SickGpuError after the time limit, SourceError if the measurement was stopped or the
        process failed.
        """
        streams = {"out": self._process.stdout, "err": self._process.stderr}
        with selectors.DefaultSelector() as selector:
            for name, stream in streams.items():
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, name)
            yield from self._read(selector)
        self._end()

    def _read(self, selector: selectors.BaseSelector) -> Iterator[str]:
        rest = b""
        ended = False
        while selector.get_map():
            ready = selector.select(0 if ended else _CHECK_S)
            for key, _ in ready:
                part = self._part(key, selector)
                self._tails[key.data] = (self._tails[key.data] + part)[-KEPT_BYTES:]
                if key.data == "out":
                    *whole, rest = (rest + part).split(b"\n")
                    yield from (line.decode(errors="replace") for line in whole)
                    rest = rest[-KEPT_BYTES:]
            if ended and not ready:  # what it started has the pipe, and says nothing
                break
            ended = self._process.poll() is not None
            self._check()
        if rest:
            yield rest.decode(errors="replace")

    @staticmethod
    def _part(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> bytes:
        try:
            part = os.read(key.fd, KEPT_BYTES)
        except BlockingIOError:
            return b""
        if not part:
            selector.unregister(key.fileobj)
        return part

    def _check(self) -> None:
        if self._stopped.is_set():
            raise SourceError(f"{self._name}: stopped by a signal")
        if time.monotonic() > self._ends:
            raise SickGpuError("timeout", f"{self._name}: no end within {self._limit_s:g} s")

    def _end(self) -> None:
        """Wait for its end. Raises SourceError if it failed."""
        while (code := self._process.poll()) is None:
            self._check()
            time.sleep(0.01)
        if code == 0:
            return
        how = f"ended with {code}" if code > 0 else f"was killed by {_signal_name(-code)}"
        text = (self._tails["err"] or self._tails["out"]).decode(errors="replace")
        said = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        raise SourceError(f"{self._name}: {how}" + (f": {said[:300]}" if said else ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
