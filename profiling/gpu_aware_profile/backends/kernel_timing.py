"""Timing by kernels of ours on real GPUs (`kernels`), each run in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from gpu_aware_profile.backends.cupy_library import ensure_compile_cache
from gpu_aware_profile.backends.timing import KernelTime, Reading, RunControl, RunSpec, SickGpuError
from gpu_aware_profile.child import Child
from slurm_gpu_aware.bounds import check_time_ms
from slurm_gpu_aware.errors import SourceError, not_installed

_PROGRAM = (sys.executable, "-P", "-m", "gpu_aware_profile.kernels.program")
"""``-P``: no module comes from the working directory, which may be /tmp."""
_LIMIT_S = 300.0
"""Time limit of a run: start, compilation, warm-up, and some seconds per kernel."""
_CHECK_LIMIT_S = 120.0


class KernelTiming:
    """A `timing.Timing`. A class's time is the geometric mean over its kernels' per TFLOP or GB.

    So a GPU that is 10% slower for one of n kernels has a time that is 1.1^(1/n) times as long,
    whichever kernel takes the longest, and GPUs of one model with different memories, which have
    kernels of different sizes, can be compared.
    """

    name = "kernels"
    classes = ("A", "B", "C")

    def __init__(self, program: Sequence[str] = _PROGRAM, limit_s: float = _LIMIT_S) -> None:
        """``program``: started with the class. ``limit_s``: time limit of a run."""
        self._program = tuple(program)
        self._limit_s = limit_s

    @classmethod
    def of_this_node(cls) -> KernelTiming:
        """Raises SourceError that says what is missing."""
        if find_spec("cupy") is None:
            raise SourceError(not_installed("CuPy", "gpu"))
        ensure_compile_cache()
        with Child(_PROGRAM, limit_s=_CHECK_LIMIT_S) as child:
            for line in child.lines():
                _event(line)  # raises for one that says what is missing
        return cls()

    def measure(self, run: RunSpec, control: RunControl) -> Reading:
        """Measure the kernels of a class. Raises SourceError, LateError, SickGpuError."""
        kernels: list[KernelTime] = []
        samples: list[int] = []
        spreads: list[float] = []
        argv, environment = [*self._program, run.app_class], os.environ | run.environment
        with (
            Child(argv, environment, self._limit_s, control.stopped, given=None) as child,
            ExitStack() as window,
        ):
            for line in child.lines():
                event = _event(line)
                kind = event.pop("event", None)
                if kind == "ready":
                    control.warm_up()
                    child.write("go\n")
                elif kind == "begin":
                    window.enter_context(control.window())
                elif kind == "end":
                    window.close()
                elif kind == "kernel":
                    samples.append(int(event.pop("samples")))
                    spreads.append(float(event.pop("spread")))
                    kernels.append(KernelTime(**event))
                elif kind == "done" and kernels:
                    control.company().wait()
                    child.end()
                    return _reading(kernels, samples, spreads)
        raise SourceError("the kernels ended without a result")


def _reading(
    kernels: Sequence[KernelTime], samples: Sequence[int], spreads: Sequence[float]
) -> Reading:
    value_ms = statistics.geometric_mean(check_time_ms(1e3 / kernel.rate) for kernel in kernels)
    return Reading(value_ms, min(samples), max(spreads), tuple(kernels))


def _event(line: str) -> dict[str, Any]:
    """A line of the program; empty: not one of its own. Raises for what ends a run."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(event, dict):
        return {}
    if event.get("event") == "wrong":
        raise SickGpuError("result", f"wrong result of a kernel: {event.get('error')}")
    if event.get("event") == "unusable":
        raise SourceError(str(event.get("error")))
    return event
