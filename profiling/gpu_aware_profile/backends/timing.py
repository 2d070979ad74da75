"""Timing backends: what all of them take and give, fake GPUs, and the choice of one.

A run measures one GPU for one class under one condition. The backends are `FakeTiming` (fake
GPUs) and `process_timing` (kernels of ours, and a program of the site).
"""

import os
import random
import socket
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.profile import LOADED
from slurm_gpu_aware.text_file import read_object

_MAD_TO_SIGMA = 1.4826
_ITERATIONS = 25
_DISTURBED = 1.5
"""A disturbed iteration takes this many times as long."""


class SickGpuError(SourceError):
    """The GPU computes wrong results: it gets no time and is not measured further.

    ``reason``: a sentence.
    """

    call = "result"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RunSpec(NamedTuple):
    """One run to measure."""

    slot: int
    """Slurm's index of the GPU."""
    uuid: str
    environment: Mapping[str, str]
    """Variables by which a process sees this GPU only."""
    app_class: str
    neighbours: str
    """``idle`` or ``loaded``: whether the other GPUs of the node are measured at the same time."""
    number: int
    """Counts the runs of a GPU and class under equal conditions from 0."""


class KernelTime(NamedTuple):
    """Time of one kernel within a run."""

    name: str
    value_ms: float
    rate: float
    unit: str
    """Of ``rate``: ``TFLOP/s`` or ``GB/s``."""
    share: float | None
    """``rate`` over the vendor's peak at the highest clock; None: not known."""


class Reading(NamedTuple):
    """Result of a run."""

    value_ms: float
    """Median over the iterations; with kernels the geometric mean of those per unit of work."""
    samples: int | None = None
    spread: float | None = None
    """Relative (1.4826 MAD / median); with several kernels the largest one."""
    kernels: tuple[KernelTime, ...] = ()


class RunControl(Protocol):
    """What a backend has to tell during a run."""

    stopped: threading.Event
    """Set when the measurement ends early; a child process has to be ended then."""

    def warm_up(self) -> None:
        """Wait, while the GPU works, until it is in thermal equilibrium and the others are, too."""

    def window(self) -> AbstractContextManager[None]:
        """The measured part, or one of several: clocks and power are of these."""

    def company(self) -> threading.Event:
        """This GPU is measured; the event is set when all GPUs of this run are.

        The GPU has to work until then, so that the others have loaded neighbours.
        """


class Timing(Protocol):
    """A timing backend. GPUs are measured by one thread each."""

    name: str

    @property
    def classes(self) -> Sequence[str]:
        """Classes that it can measure."""

    def measure(self, run: RunSpec, control: RunControl) -> Reading:
        """Measure. Raises SourceError if this run has no time; if no other one will have a time,
        SickGpuError or LateError.
        """


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median and the relative spread (1.4826 MAD / median) of at least one sample.

    PAL profiles with the median, because a single run may be several times slower for other reasons
    than the GPU. The factor makes the spread an estimate of a standard deviation.
    """
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    return middle, _MAD_TO_SIGMA * deviation / middle


def timing_backend(name: str | None = None) -> Timing | None:
    """The backend of this name, or without a name one that works on this node; None: there is none.

    Raises SourceError if the named one is not known or cannot work here.
    """
    from gpu_aware_profile.backends.process_timing import KernelTiming

    if name not in (None, FakeTiming.name, KernelTiming.name):
        known = f"{FakeTiming.name}, {KernelTiming.name}"
        raise SourceError(f"unknown timing backend {name!r}; known: {known}")
    if name != KernelTiming.name and (fake := FakeTiming.of_this_node()) is not None:
        return fake
    if name == FakeTiming.name:
        raise SourceError(f"timing backend {name!r} cannot work here: no fake machine on this node")
    if name is None and find_spec("cupy") is None:
        return None
    return KernelTiming.of_this_node()


class FakeMachine(NamedTuple):
    """Files of docker/fake_nvml."""

    file: Path
    state: Path
    """Folder of what changes: ``override.json``, locked clocks."""


def fake_machine() -> FakeMachine | None:
    """The files of this node; None: its GPUs are not fake."""
    host = socket.gethostname().partition(".")[0]
    file = Path(os.environ.get("FAKE_NVML_MACHINE") or f"/etc/gpu-aware-fake/{host}.json")
    state = os.environ.get("FAKE_NVML_STATE") or f"/shared/fakegpu/{host}"
    return FakeMachine(file, Path(state)) if file.exists() else None


class FakeTiming:
    """A `timing.Timing`.

    An iteration takes ``base_ms`` of the class times the GPU's slowness, times the factor of the
    run (noise from run to run, neighbours, clock, a slow run that the override names), times the
    noise of the iteration. All noise is seeded, so that a machine always gives the same times.
    """

    name = "fake"

    def __init__(self, machine: Path, state: Path) -> None:
        """``state``: folder of locked clocks and of ``override.json``. Raises SourceError."""
        self._file = machine
        self._machine = read_object(machine)
        self._state = state
        override = state / "override.json"
        self._override = read_object(override) if override.exists() else {}

    @classmethod
    def of_this_node(cls) -> Self | None:
        """None: the GPUs of this node are not fake. Raises SourceError."""
        files = fake_machine()
        return None if files is None else cls(*files)

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the machine file."""
        return tuple(self._machine.get("classes", {}))

    def measure(self, run: RunSpec, control: RunControl) -> Reading:
        """The run's time, the same one on each call. Raises SourceError."""
        entry = self._machine.get("classes", {}).get(run.app_class)
        if entry is None:
            known = ", ".join(self.classes) or "none"
            raise SourceError(f"{self._file}: no class {run.app_class!r}; its classes: {known}")
        with self._load(run, entry), control.window():
            times = self.iterations(run, entry)
        value_ms, spread = median_and_spread(times)
        return Reading(value_ms, len(times), spread)

    def iterations(self, run: RunSpec, entry: dict[str, Any]) -> list[float]:
        """Time of each iteration; ``entry``: that of the class. Units: ms."""
        machine = self._machine
        noise, run_noise, outliers = (
            float(machine.get(key, 0.0)) for key in ("noise", "run_noise", "outliers")
        )
        clock = self._clock_factor(run.slot, entry)
        seed = (machine.get("seed", 0), run.uuid, run.app_class, run.neighbours, clock, run.number)
        draw = random.Random("/".join(map(str, seed)))  # noqa: S311 - noise that must repeat
        expected = float(entry["base_ms"]) * clock * self._factor(run)
        expected *= max(0.1, 1.0 + run_noise * draw.gauss(0.0, 1.0))
        return [
            expected
            * max(0.1, 1.0 + noise * draw.gauss(0.0, 1.0))
            * (_DISTURBED if draw.random() < outliers else 1.0)
            for _ in range(_ITERATIONS)
        ]

    def _factor(self, run: RunSpec) -> float:
        """Slowness of the GPU, times that of loaded neighbours, times that of a slow run."""
        entry = next((e for e in self._machine.get("gpus", []) if e.get("uuid") == run.uuid), None)
        if entry is None:
            raise SourceError(f"{self._file}: no GPU {run.uuid}")
        own = entry.get("slowness", {}).get(run.app_class, 1.0)
        override = self._override.get("slowness", {}).get(str(run.slot), {})
        factor = float(override.get(run.app_class, own))
        if run.neighbours == LOADED:
            loaded = entry.get("loaded") or self._machine.get("loaded") or {}
            factor *= float(loaded.get(run.app_class, 1.0))
        for slow in self._override.get("slow_runs", []):
            if (slow["gpu"], slow["run"]) == (run.slot, run.number):
                factor *= float(slow["factors"].get(run.app_class, 1.0))
        return factor

    def _clock_factor(self, index: int, entry: dict[str, Any]) -> float:
        """Time at the clock that is set, or that the power limit leaves, over the default one's."""
        share = float(entry.get("clock_share", 0.0))
        clocks = self._machine.get("clocks", {})
        set_to = self._set_to(index, "locked_clocks") or self._set_to(index, "applications_clocks")
        mhz = float(set_to[1] if set_to else clocks.get("default_mhz", 0))
        default = float(clocks.get("default_mhz", mhz))
        if limit := self._set_to(index, "power_limit"):
            mhz = self._kept_mhz(index, float(entry.get("load", 0.0)), mhz, limit[0] / 1e3)
        return 1.0 if mhz == default else 1.0 - share + share * default / mhz

    def _set_to(self, index: int, name: str) -> list[int]:
        """Numbers of a file of the state; empty: it is not there."""
        with suppress(OSError, ValueError):
            return [int(word) for word in (self._state / f"gpu{index}.{name}").read_text().split()]
        return []

    def _kept_mhz(self, index: int, load: float, mhz: float, limit_w: float) -> float:
        """The clock that a power limit leaves, as in the fake library (``state_sm_clock``)."""
        gpus = self._machine.get("gpus", [])
        own = self._machine | next((gpu for gpu in gpus if gpu.get("minor") == index), {})
        idle_w, most_w = float(own.get("power_idle_w", 40)), float(own.get("power_limit_w", 300))
        clocks = [float(clock) for clock in self._machine["clocks"]["graphics_mhz"]]
        fits = (
            clock
            for clock in clocks
            if clock <= mhz
            and idle_w + load * (most_w - idle_w) * (clock / clocks[0]) ** 3 <= limit_w + 1e-6
        )
        return next(fits, clocks[-1])

    @contextmanager
    def _load(self, run: RunSpec, entry: dict[str, Any]) -> Iterator[None]:
        """Let the fake library show the power of a GPU that works, where the folder is ours."""
        file = self._state / f"gpu{run.slot}.load"
        try:
            with suppress(OSError):
                file.parent.mkdir(exist_ok=True)
                file.write_text(f"{100 * float(entry.get('load', 0.0)):.0f}\n")
            yield
        finally:
            with suppress(OSError):
                file.unlink()
