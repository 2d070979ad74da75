"""Timing by processes: kernels of ours on real GPUs (`kernels`), and a program of the site.

Each run of kernels has a process of its own. Of the output of a program (``--bench CMD``) one
number is read.
"""

import os
import re
import shlex
import statistics
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import Any, Self

from gpu_aware_profile.backends.timing import (
    KernelTime,
    Reading,
    RunControl,
    RunSpec,
    SickGpuError,
    ensure_compile_cache,
)
from gpu_aware_profile.child import Child, objects
from slurm_gpu_aware.bounds import check_time_ms, quoted
from slurm_gpu_aware.errors import SourceError, not_installed

_PROGRAM = (sys.executable, "-P", "-m", "gpu_aware_profile.kernels.program")
"""``-P``: no module comes from the working directory, which may be /tmp."""
_LIMIT_S = 300.0  # Time limit of a run: start, compilation, warm-up, and some seconds per kernel.
_CHECK_LIMIT_S = 120.0
UNITS: dict[str, Callable[[float], float]] = {
    "ms": lambda number: number,
    "s": lambda number: 1000.0 * number,
    "rate": lambda number: 1000.0 / number,
}
"""Unit of the program's number -> number to ms; a rate is iterations per second."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_LONGEST = 4096  # Characters of a line, from its end, in which a number is looked for.
_SEARCH_S = 10.0
_SEARCH = """
import re, sys
found = None
for found in re.finditer(sys.argv[1], sys.stdin.buffer.read().decode(errors="replace")):
    pass
if found:
    print(next((group for group in found.groups() if group), found.group()))
"""
"""Prints the first group of the last match, or without groups the match."""


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
    def of_this_node(cls) -> Self:
        """Raises SourceError that says what is missing."""
        if find_spec("cupy") is None:
            raise SourceError(not_installed("CuPy", "gpu"))
        ensure_compile_cache()
        with Child(_PROGRAM, limit_s=_CHECK_LIMIT_S) as child:
            for event in objects(child.lines()):
                _check(event)  # raises for one that says what is missing
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
            for event in objects(child.lines()):
                _check(event)
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


def _check(event: Mapping[str, Any]) -> None:
    """Raise SourceError or SickGpuError for what ends a run."""
    if event.get("event") == "wrong":
        raise SickGpuError(f"wrong result of a kernel: {event.get('error')}")
    if event.get("event") == "unusable":
        raise SourceError(str(event.get("error")))


class CommandTiming:
    """A `timing.Timing`: runs a program once per GPU and run.

    The number is the last match of the pattern (its first group, if it has one), or without a
    pattern the last number on the last line that has one.
    """

    name = "command"

    def __init__(
        self, command: str, app_class: str, pattern: str | None, unit: str, limit_s: float
    ) -> None:
        """Raises SourceError if the command or the pattern is malformed."""
        try:
            self._argv = shlex.split(command)
        except ValueError as exc:
            raise SourceError(f"the command {quoted(command)} is malformed: {exc}") from None
        if not self._argv:
            raise SourceError("the command is empty")
        try:
            re.compile(pattern or "")
        except re.error as exc:
            raise SourceError(f"the pattern {quoted(pattern)} is malformed: {exc}") from None
        self._name = self._argv[0].rpartition("/")[2]
        self.classes = (app_class,)
        self._pattern = pattern
        self._unit = unit
        self._limit_s = limit_s

    def measure(self, run: RunSpec, control: RunControl) -> Reading:
        """Run the program. Raises SourceError, and LateError if it does not end in time.

        The whole run is the measured window, because where its warm-up ends is not known.
        """
        with control.window():
            output = self._output(run, control.stopped)
        number = self.number(output)
        try:
            value_ms = check_time_ms(UNITS[self._unit](number))
        except (ValueError, ZeroDivisionError):
            raise SourceError(f"{self._name}: {number:g} {self._unit} is not a time") from None
        self._accompany(run, control.company())
        return Reading(value_ms)

    def _output(self, run: RunSpec, stopped: threading.Event) -> str:
        """The end of the program's output."""
        environment = os.environ | run.environment
        limits = (self._limit_s, stopped)
        return _printed(Child(self._argv, environment, *limits, merged=True))

    def _accompany(self, run: RunSpec, others_done: threading.Event) -> None:
        """Run the program again, so that the others have loaded neighbours to their end."""
        with suppress(SourceError):
            while not others_done.is_set():
                self._output(run, others_done)

    def number(self, output: str) -> float:
        """The number of an output. Raises SourceError that quotes the end of it."""
        text = self._matched(output) if self._pattern is not None else _last_number(output)
        if text is None:
            wanted = "number" if self._pattern is None else f"match of {quoted(self._pattern)}"
            last = (output.strip() or "nothing").rpartition("\n")[2]
            raise SourceError(
                f"{self._name}: no {wanted} in its output, which ends in {quoted(last)}"
            )
        try:
            return float(text)
        except ValueError:
            raise SourceError(f"{self._name}: {quoted(text)} is not a number") from None

    def _matched(self, output: str) -> str | None:
        """The text of the last match; None: there is none.

        A pattern may need exponential time for an output that its author did not foresee, and
        Python cannot interrupt it: hence a process with a time limit.
        """
        argv = [sys.executable, "-IS", "-c", _SEARCH, self._pattern or ""]
        try:
            return _printed(Child(argv, limit_s=_SEARCH_S, given=output.encode())).strip() or None
        except SourceError:
            raise SourceError(
                f"{self._name}: the search for {quoted(self._pattern)} in its output failed"
                f" or took longer than {_SEARCH_S:g} s"
            ) from None


def _printed(process: Child) -> str:
    """The end of the output of a process. Raises SourceError."""
    with process:
        for _ in process.lines():
            pass
    return process.output


def _last_number(output: str) -> str | None:
    for line in reversed(output.splitlines()):
        if numbers := _NUMBER.findall(line[-_LONGEST:]):
            return str(numbers[-1])
    return None
