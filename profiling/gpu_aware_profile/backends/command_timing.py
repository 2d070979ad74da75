"""Timing by a program of the site (``--bench CMD``): one number is read from its output."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from gpu_aware_profile.backends.timing import Reading, RunControl, RunSpec
from gpu_aware_profile.child import Child
from slurm_gpu_aware.bounds import check_time_ms, quoted
from slurm_gpu_aware.errors import SourceError

UNITS: dict[str, Callable[[float], float]] = {
    "ms": lambda number: number,
    "s": lambda number: 1000.0 * number,
    "rate": lambda number: 1000.0 / number,
}
"""Unit of the program's number -> number to ms; a rate is iterations per second."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_LONGEST = 4096
"""Characters of a line, from its end, in which a number is looked for."""
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
