"""Telemetry of one GPU during a run: a thread that samples it, and a summary of its windows."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from gpu_aware_profile.devices.driver import ANSWER_S, Device, NoAnswerError, Sample
from slurm_gpu_aware.errors import DeviceError

PERIOD_S = 0.1
_COUNTER_S = 0.5
"""Energy counters advance in steps of up to 0.1 s: below this time the samples are better."""
_STEADY_S = 5.0
_STEADY_C = 1.0
"""A GPU is in thermal equilibrium if its temperature stays within this range for that time."""


_Reading = tuple[float, Sample, float | None]  # Time (Units: s), sample, energy counter (Units: J).


class Window(NamedTuple):
    """A measured part of a run."""

    samples: tuple[Sample, ...]
    duration_s: float
    energy_j: float | None  # None: the GPU has no counter.


def power_w(window: Window) -> float | None:
    """Mean power in a window, from the energy counter if it is long enough. Units: W."""
    if window.energy_j and window.duration_s >= _COUNTER_S:
        return window.energy_j / window.duration_s
    return _mean(sample.power_w for sample in window.samples)


def _window(readings: Sequence[_Reading]) -> Window:
    samples = tuple(sample for _, sample, _ in readings)
    if not readings:
        return Window(samples, 0.0, None)
    (begin, _, first_j), (end, _, last_j) = readings[0], readings[-1]
    used = None if first_j is None or last_j is None else last_j - first_j
    return Window(samples, end - begin, used)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


class Telemetry:
    """Samples a GPU while its ``with`` block runs.

    A query that fails ends the sampling; ``fault`` is its error. ``now``: a clock in seconds.
    """

    def __init__(self, device: Device, now: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._now = now
        self._ended = False
        self._asked = self._served = 0
        self._changed = threading.Condition()
        self._open: list[_Reading] | None = None
        self._temperatures: deque[tuple[float, float]] = deque()
        self._sampled = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.windows: list[Window] = []
        self.fault: DeviceError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if not isinstance(self.fault, NoAnswerError):
            self._thread.join(ANSWER_S)

    def _run(self) -> None:
        while not self._ended and self.fault is None:
            serving = self._asked
            self.take()
            with self._changed:
                self._served = serving
                self._changed.notify_all()
                if self._asked == serving and not self._ended:
                    self._changed.wait(PERIOD_S)

    def take(self) -> None:
        """Take one sample; only the thread may do so while it runs."""
        window = self._open
        try:
            sample, energy_j = self._device.sample(), self._device.energy_j()
        except DeviceError as exc:
            self.fault = exc
            return
        now = self._now()
        with self._changed:
            self._sampled = True
            # A sample that began before the window shows the GPU without the window's load
            if window is not None and window is self._open:
                window.append((now, sample, energy_j))
            if sample.temperature_c is not None:
                self._temperatures.append((now, sample.temperature_c))
                while self._temperatures[0][0] < now - _STEADY_S - 1.0:
                    self._temperatures.popleft()

    @contextmanager
    def window(self) -> Iterator[None]:
        """A measured part; it has a sample at its start and one at its end."""
        with self._changed:
            self._open = []
        try:
            self._wait_for_sample()
            yield
            self._wait_for_sample()
        finally:
            with self._changed:
                readings, self._open = self._open or [], None
        self.windows.append(_window(readings))

    def _wait_for_sample(self) -> None:
        """Wait for a sample that is taken from now on; a driver that hangs is a fault."""
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            answered = self._changed.wait_for(
                lambda: self._served >= asked or self.fault is not None, ANSWER_S
            )
        if not answered:
            self.fault = NoAnswerError("telemetry")

    def steady(self, since: float) -> bool:
        """Whether the GPU is in thermal equilibrium with the load that it has since then.

        True if it has no thermometer. ``since``: by the clock. Units: s.
        """
        with self._changed:
            seen = list(self._temperatures)
        if not seen or self.fault is not None:
            return self._sampled or self.fault is not None
        newest = seen[-1][0]
        if newest - max(seen[0][0], since) < _STEADY_S:
            return False
        recent = [celsius for at, celsius in seen if at >= newest - _STEADY_S]
        return max(recent) - min(recent) <= _STEADY_C

    def conditions(self, value_ms: float) -> dict[str, float | str | None]:
        """Fields of a timing in the report, for a run whose iteration takes ``value_ms``.

        Power is the geometric mean over the windows, as the time is that over the kernels, so that
        energy = power x time holds for each kernel and for the run.
        """
        samples = [sample for window in self.windows for sample in window.samples]
        powers = [power_w(window) for window in self.windows]
        known = [power for power in powers if power]
        power = statistics.geometric_mean(known) if known else None
        hottest = [s.temperature_c for s in samples if s.temperature_c is not None]
        return {
            "sm_mhz": _rounded(_mean(s.sm_mhz for s in samples)),
            "memory_mhz": _rounded(_mean(s.memory_mhz for s in samples)),
            "power_w": _rounded(power),
            "energy_j": None if power is None else float(f"{power * value_ms / 1e3:.6g}"),
            "temperature_c": max(hottest, default=None),
            "throttle": " ".join(sorted(set().union(*(s.throttle for s in samples)))),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
