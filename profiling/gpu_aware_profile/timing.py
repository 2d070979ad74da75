"""Timing backends: the time of a GPU for one iteration of a class's workload.

The report has the median and the spread of ``repeats`` samples per GPU and class. PAL profiles with
the median, because a single run may be several times slower for other reasons than the GPU. The
spread is the median absolute deviation over the median, scaled by 1.4826 to estimate a standard
deviation.
"""

from __future__ import annotations

import json
import os
import random
import socket
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slurm_gpu_aware.errors import SourceError

__all__ = [
    "FakeTiming",
    "Gpu",
    "TimingBackend",
    "available_backend",
    "backend_names",
    "make_backend",
    "median_and_spread",
]

_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class Gpu:
    """Identity of a GPU for a backend."""

    index: int
    """Minor number of ``/dev/nvidiaN`` = Slurm's IDX."""
    uuid: str
    pci: str


class TimingBackend(Protocol):
    """Measures times on this node's GPUs."""

    @property
    def name(self) -> str:
        """Name in reports."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes that it can measure."""

    def samples(self, gpu: Gpu, app_class: str, repeats: int) -> Sequence[float]:
        """Return ``repeats`` iteration times. Units: ms. Raises SourceError."""


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median and the relative spread (1.4826 MAD / median) of at least one sample."""
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    return middle, _MAD_TO_SIGMA * deviation / middle


class FakeTiming:
    """Times of the fake GPUs, from the file that drives the fake NVML library.

    A sample is ``base_ms`` of the class times the GPU's slowness times seeded noise, so that a
    machine always gives the same samples.
    """

    name = "fake"
    OUTLIER = 1.5
    """A disturbed repeat takes this many times as long."""

    def __init__(self, machine: Path, state: Path | None = None) -> None:
        """``state``: folder whose ``override.json`` may change slowness."""
        self._file = machine
        self._machine = _read(machine)
        override = state / "override.json" if state else None
        self._override = _read(override) if override and override.exists() else {}

    @classmethod
    def here(cls) -> FakeTiming:
        """The fake machine of this host. Raises SourceError if there is none."""
        return cls(_machine_file(), _state_folder())

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the machine file."""
        return tuple(self._machine.get("classes", {}))

    def samples(self, gpu: Gpu, app_class: str, repeats: int) -> list[float]:
        """Return ``repeats`` times, the same ones on each call. Units: ms."""
        entry = self._machine.get("classes", {}).get(app_class)
        if entry is None:
            known = ", ".join(self.classes) or "none"
            raise SourceError(f"{self._file}: no class {app_class!r}; its classes: {known}")
        expected = float(entry["base_ms"]) * self._slowness(gpu, app_class)
        noise = float(self._machine.get("noise", 0.0))
        outliers = float(self._machine.get("outliers", 0.0))
        seed = f"{self._machine.get('seed', 0)}/{gpu.uuid}/{app_class}"
        draw = random.Random(seed)  # noqa: S311 - noise that must repeat
        return [
            expected
            * max(0.1, 1.0 + noise * draw.gauss(0.0, 1.0))
            * (self.OUTLIER if draw.random() < outliers else 1.0)
            for _ in range(repeats)
        ]

    def _slowness(self, gpu: Gpu, app_class: str) -> float:
        entries = self._machine.get("gpus", [])
        entry = next((e for e in entries if e.get("uuid") == gpu.uuid), None)
        if entry is None:
            raise SourceError(f"{self._file}: no GPU {gpu.uuid}")
        own = entry.get("slowness", {}).get(app_class, 1.0)
        override = self._override.get("slowness", {}).get(str(gpu.index), {})
        return float(override.get(app_class, own))


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _machine_file() -> Path:
    named = os.environ.get("FAKE_NVML_MACHINE")
    return Path(named) if named else Path(f"/etc/gpu-aware-fake/{_host()}.json")


def _state_folder() -> Path:
    named = os.environ.get("FAKE_NVML_STATE")
    return Path(named) if named else Path("/shared/fakegpu") / _host()


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text())
    except OSError as exc:
        raise SourceError(f"{file}: cannot be read: {exc.strerror}") from None
    except ValueError as exc:
        raise SourceError(f"{file}: not valid JSON: {exc}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{file}: expected a JSON object")
    return content


_BACKENDS: dict[str, tuple[Callable[[], TimingBackend], Callable[[], bool]]] = {
    "fake": (FakeTiming.here, lambda: _machine_file().exists()),
}
"""Name -> (constructor, whether it works on this node)."""


def backend_names() -> tuple[str, ...]:
    """Names for ``--backend``."""
    return tuple(sorted(_BACKENDS))


def available_backend() -> str | None:
    """Name of the first backend that works on this node; None: there is none."""
    return next((name for name, (_, usable) in _BACKENDS.items() if usable()), None)


def make_backend(name: str) -> TimingBackend:
    """Return a backend by name. Raises SourceError: unknown, or not usable on this node."""
    if name not in _BACKENDS:
        known = ", ".join(backend_names())
        raise SourceError(f"unknown timing backend {name!r}; known: {known}")
    make, usable = _BACKENDS[name]
    if not usable():
        raise SourceError(f"timing backend {name!r} cannot work here: no fake machine on this node")
    return make()
