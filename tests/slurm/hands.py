"""One process in a container that runs commands for the tests, any number at a time.

A ``docker exec`` costs 0.1 s of CPU, ten times what ``scontrol`` costs, and tests ask every 0.2 s.
So each container and user gets one ``docker exec`` that stays, reads commands and answers.
"""

import base64
import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Sequence

from idle_clock import idle_s

__all__ = ["GONE", "Hands"]

GONE = 137
"""Status of a command whose container was killed meanwhile, as ``docker exec`` has it."""

# What runs in the container: one JSON object per line in and out, a thread per command.
INSIDE = r"""
import base64, json, subprocess, sys, threading
lock = threading.Lock()
def run(ask):
    try:
        given = base64.b64decode(ask["stdin"])
        done = subprocess.run(ask["argv"], input=given, capture_output=True)
        status, out, err = done.returncode, done.stdout, done.stderr
    except OSError as exc:
        status, out, err = 127, b"", str(exc).encode()
    told = [base64.b64encode(text).decode() for text in (out, err)]
    with lock:
        print(json.dumps([ask["id"], status if status >= 0 else 128 - status, *told]), flush=True)
for line in sys.stdin:
    threading.Thread(target=run, args=(json.loads(line),), daemon=True).start()
"""


class Hands:
    """Commands in one container as one user.

    Parameters
    ----------
    start : the ``docker exec ...`` that the interpreter's arguments are added to.
    """

    def __init__(self, start: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [*start, "python3", "-u", "-c", INSIDE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._answers: dict[int, tuple[int, bytes, bytes]] = {}
        self._gone = False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def gone(self) -> bool:
        """Whether the container has died: the next command needs new hands."""
        return self._gone

    def run(
        self, argv: Sequence[str], stdin: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end.

        Raises
        ------
        subprocess.TimeoutExpired
            After ``timeout`` seconds of an idle machine; the command itself goes on.
        """
        number = next(self._ids)
        ask = {"id": number, "argv": list(argv), "stdin": base64.b64encode(stdin).decode()}
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(ask).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:
                self._gone = True
            end = idle_s() + timeout
            while not self._answered.wait_for(
                lambda: self._gone or number in self._answers, max(0.1, end - idle_s())
            ):
                if idle_s() > end:
                    break
            if number in self._answers:
                return subprocess.CompletedProcess(list(argv), *self._answers.pop(number))
            if self._gone:
                return subprocess.CompletedProcess(list(argv), GONE, b"", b"container is gone")
        raise subprocess.TimeoutExpired(list(argv), timeout)

    def close(self) -> None:
        """End the process in the container."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # the end of its container cuts a line off
            for line in self._process.stdout:
                number, status, out, err = json.loads(line)
                with self._lock:
                    self._answers[number] = (status, base64.b64decode(out), base64.b64decode(err))
                    self._answered.notify_all()
        with self._lock:
            self._gone = True
            self._answered.notify_all()
