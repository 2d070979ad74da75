"""Bandwidths of real GPUs, measured by a child process with CuPy and NCCL (`nccl_worker`).

CUDA and NCCL may hang or end the process, and after an error CUDA may refuse everything; then the
next request starts another process. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gpu_aware_profile.backends.cupy_library import ensure_compile_cache
from gpu_aware_profile.child import Child
from gpu_aware_profile.links.link_timing import AllReduceReading, PairReading
from slurm_gpu_aware.errors import SourceError

_PROGRAM = (sys.executable, "-P", "-m", "gpu_aware_profile.links.nccl_worker")
_MOST_WORDS = 400


class NcclLinks:
    """A `link_timing.LinkTiming`."""

    name = "nccl"

    def __init__(
        self,
        uuids: Mapping[int, str],
        visible_variable: str,
        stopped: threading.Event,
        program: Sequence[str] = _PROGRAM,
    ) -> None:
        """Arguments as for `link_backend`. ``program``: of the child."""
        ensure_compile_cache()
        self._at = {slot: position for position, slot in enumerate(uuids)}
        # CUDA numbers the devices in this order.
        self._environment = {visible_variable: ",".join(uuids.values())}
        self._stopped = stopped
        self._program = program
        self._running = ExitStack()
        self._child: Child | None = None
        self._lines: Iterator[str] = iter(())

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
        self._child = None
        self._running.close()

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        try:
            answer = self._answer(request, limit_s)
        except SourceError:
            self.close()
            raise
        if "error" in answer:
            self.close()
            raise SourceError(str(answer["error"])[:_MOST_WORDS])
        return answer

    def _answer(self, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        if self._child is None:
            environment = os.environ | self._environment
            self._child = self._running.enter_context(
                Child(self._program, environment, stopped=self._stopped, given=None)
            )
            self._lines = self._child.lines()
        self._child.renew_limit(limit_s)
        self._child.write(json.dumps(request) + "\n")
        for line in self._lines:
            try:
                answer = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(answer, dict):
                return answer
        raise SourceError("the measuring process ended without an answer")


def _number(answer: Mapping[str, Any], key: str) -> float | None:
    value = answer.get(key)
    return float(value) if isinstance(value, int | float) else None
