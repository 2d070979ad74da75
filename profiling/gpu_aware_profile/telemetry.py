"""Telemetry of one GPU during a run: a thread that samples it, and a summary of its windows."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpu_aware_profile.devices import Device, DeviceError, Sample

__all__ = ["Telemetry", "Window", "power_w"]

PERIOD_S = 0.1
_COUNTER_S = 0.5
"""Energy counters advance in steps of up to 0.1 s: below this time the samples are better."""
_STEADY_S = 5.0
_STEADY_C = 1.0
"""A GPU is in thermal equilibrium if its temperature stays within this range for that time."""
_END_S = 5.0
"""Wait for a query that hangs in the driver at most this long."""


class Window(NamedTuple):
    """A measured part of a run."""

    samples: tuple[Sample, ...]
    duration_s: float
    energy_j: float | None
    """None: the GPU has no counter."""


def power_w(window: Window) -> float | None:
    """Mean power in a window, from the energy counter if it is long enough. Units: W."""
    if window.energy_j and window.duration_s >= _COUNTER_S:
        return window.energy_j / window.duration_s
    return _mean(sample.power_w for sample in window.samples)


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
        self._ended = threading.Event()
        self._open: list[Sample] | None = None
        self._temperatures: deque[tuple[float, float]] = deque()
        self._sampled = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.windows: list[Window] = []
        self.fault: DeviceError | None = None

    def __enter__(self) -> Telemetry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            self.take()

    def take(self) -> None:
        """Take one sample."""
        if self.fault is not None:
            return
        try:
            sample = self._device.sample()
        except DeviceError as exc:
            self.fault = exc
            return
        with self._lock:
            self._sampled = True
            if self._open is not None:
                self._open.append(sample)
            if sample.temperature_c is not None:
                now = self._now()
                self._temperatures.append((now, sample.temperature_c))
                while self._temperatures[0][0] < now - _STEADY_S - 1.0:
                    self._temperatures.popleft()

    @contextmanager
    def window(self) -> Iterator[None]:
        """A measured part; it has a sample at its start and one at its end."""
        energy = self._energy_j()
        with self._lock:
            self._open = []
        begin = self._now()
        self.take()
        try:
            yield
            self.take()
        finally:
            duration = self._now() - begin
            end = self._energy_j()
            used = None if energy is None or end is None else end - energy
            with self._lock:
                samples, self._open = tuple(self._open or ()), None
        self.windows.append(Window(samples, duration, used))

    def _energy_j(self) -> float | None:
        try:
            return self._device.energy_j()
        except DeviceError as exc:
            self.fault = self.fault or exc
            return None

    def steady(self) -> bool:
        """Whether the GPU is in thermal equilibrium; True if it has no thermometer."""
        with self._lock:
            seen = list(self._temperatures)
        if not seen:
            return self._sampled or self.fault is not None
        newest = seen[-1][0]
        if newest - seen[0][0] < _STEADY_S:
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
