"""One ``srun``, with limits on its time and on its output."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import clean_environment

STOPPED = "the sweep was stopped"
_MOST_OUT = 8 << 20
_LAST_ERR = 1 << 16
_PIECE = 1 << 16
_CHECK_S = 0.1  # between two looks at whether the sweep was stopped
_END_S = 5.0  # for srun to end after its job was cancelled


class Ended(NamedTuple):
    """How an ``srun`` ended."""

    code: int
    out: str
    err: str
    """Its last 64 KiB."""


def run_srun(
    argv: Sequence[str],
    limit_s: float,
    stopped: threading.Event,
    cancel: Callable[[], None],
    reply: Callable[[bytearray], bytes] | None = None,
) -> Ended:
    """Run ``srun``; call ``cancel`` and end it if it takes too long or ``stopped`` is set.

    ``reply``: called with the output so far; what it returns first goes to all tasks, as their
    whole input.

    Raises SourceError if it was stopped or prints more than 8 MiB, subprocess.TimeoutExpired,
    OSError.
    """
    ends = time.monotonic() + limit_s
    if stopped.is_set():
        raise SourceError(STOPPED)
    # In its own session: Ctrl-C reaches this process only, which cancels the jobs.
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL if reply is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        start_new_session=True,
    ) as process:
        reading = _Output(process)
        while reading.go_on(_CHECK_S):
            if stopped.is_set() or time.monotonic() > ends or reading.too_long:
                cancel()
                _end(process)
                break
            if reply is not None and (text := reply(reading.out)):
                _write(process, text)
                reply = None
        else:
            out, err = (text.decode("utf-8", "replace") for text in (reading.out, reading.err))
            return Ended(process.returncode, out, err)
    if stopped.is_set():
        raise SourceError(STOPPED)
    if reading.too_long:
        raise SourceError(f"the probe printed more than {_MOST_OUT >> 20} MiB")
    raise subprocess.TimeoutExpired("srun", limit_s)


def _write(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Write the input; a process that has ended does not read it."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.write(text)
        with suppress(OSError):
            process.stdin.close()


class _Output:
    """Output of a process, read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.out, self.err = bytearray(), bytearray()
        self._process = process
        self._selector = selectors.DefaultSelector()
        for stream, text in ((process.stdout, self.out), (process.stderr, self.err)):
            self._selector.register(stream, selectors.EVENT_READ, text)  # type: ignore[arg-type]

    @property
    def too_long(self) -> bool:
        return len(self.out) > _MOST_OUT

    def go_on(self, seconds: float) -> bool:
        """Read what comes within this time; return whether the process goes on."""
        if not self._selector.get_map():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return self._process.returncode is None
        for key, _ in self._selector.select(seconds):
            piece = os.read(key.fd, _PIECE)
            key.data.extend(piece)
            if not piece:
                self._selector.unregister(key.fileobj)
        del self.err[:-_LAST_ERR]
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End ``srun`` in any case.

    It cancels its job on SIGTERM; ``scancel`` finds none if srun has not submitted it yet.
    """
    for end in (process.terminate, process.kill):
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_END_S)
            return
        end()
    process.wait()
