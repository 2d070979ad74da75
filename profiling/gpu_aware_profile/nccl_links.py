"""Bandwidths of real GPUs, measured by a child process with CuPy and NCCL (`nccl_worker`).

CUDA and NCCL may hang or end the process, so they run in a child that is killed after a time limit;
the next request starts a new one. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpu_aware_profile.link_timing import AllReduceReading, PairReading
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import parse_json

__all__ = ["NcclLinks"]

_MOST_ANSWER = 1 << 16
_MOST_WORDS = 400
_END_S = 5.0
_CHECK_S = 0.2


class NcclLinks:
    """A `link_timing.LinkTiming`."""

    name = "nccl"

    def __init__(
        self,
        uuids: Mapping[int, str],
        visible_variable: str,
        stopped: threading.Event,
        command: Sequence[str] = (),
    ) -> None:
        """Arguments as for `link_backend`. ``command``: of the child; default: `nccl_worker`."""
        self._at = {slot: position for position, slot in enumerate(uuids)}
        # CUDA numbers the devices in this order.
        self._visible = {visible_variable: ",".join(uuids.values())}
        self._stopped = stopped
        self._command = [*command] or [sys.executable, "-m", "gpu_aware_profile.nccl_worker"]
        self._child: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        """Of the child; a pipe would have to be read meanwhile."""

    def pair(self, a: int, b: int, limit_s: float) -> PairReading:
        answer = self._ask({"pair": [self._at[a], self._at[b]]}, limit_s)
        return PairReading(*(_number(answer, key) for key in PairReading._fields))

    def all_reduce(self, gpus: Sequence[int], limit_s: float) -> AllReduceReading:
        answer = self._ask({"all_reduce": [self._at[slot] for slot in gpus]}, limit_s)
        gbps, size_bytes = _number(answer, "gbps"), _number(answer, "size_bytes")
        if gbps is None or size_bytes is None:
            raise SourceError("the measuring process gave no bandwidth")
        return AllReduceReading(gbps, int(size_bytes))

    def close(self) -> None:
        self._end_child(grace_s=0.0)
        self._errors.close()

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        child = self._child = self._child or self._started()
        try:
            line = self._exchanged(child, json.dumps(request), time.monotonic() + limit_s)
        except TimeoutError:
            self._end_child(grace_s=0.0)
            raise SourceError(f"no answer within {limit_s:.0f} s") from None
        if not line.endswith(b"\n"):
            code = self._end_child(grace_s=_END_S)
            raise SourceError(self._last_words() or f"the measuring process ended with {code}")
        answer = parse_json(line.decode(errors="replace"), "the measuring process")
        if not isinstance(answer, dict):
            raise SourceError("the measuring process gave no JSON object")
        if "error" in answer:
            self._end_child(grace_s=0.0)
            raise SourceError(str(answer["error"])[:_MOST_WORDS])
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        # In its own session: it and what it starts are killed together.
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**os.environ, **self._visible},
            start_new_session=True,
        )

    def _end_child(self, grace_s: float) -> int | None:
        """Kill the child unless it ends within ``grace_s``; return its exit code."""
        child, self._child = self._child, None
        if child is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with child:  # closes the pipes and waits
            return child.wait()

    def _exchanged(self, child: subprocess.Popen[bytes], request: str, ends: float) -> bytes:
        """The child's answer; without its end of line if the child has ended.

        Raises TimeoutError if there is none in time, or if the measurement is stopped.
        """
        stdin, stdout = child.stdin, child.stdout
        line = b""
        if stdin is None or stdout is None:
            return line
        try:
            stdin.write(request.encode() + b"\n")
        except OSError:
            return line
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n") and len(line) < _MOST_ANSWER:
                if self._stopped.is_set() or time.monotonic() > ends:
                    raise TimeoutError
                if selector.select(_CHECK_S):
                    piece = os.read(stdout.fileno(), _MOST_ANSWER)
                    if not piece:
                        break
                    line += piece
        return line

    def _last_words(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _MOST_WORDS))
        return self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]


def _number(answer: Mapping[str, Any], key: str) -> float | None:
    value = answer.get(key)
    return float(value) if isinstance(value, int | float) else None
