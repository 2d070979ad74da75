"""Times of fake GPUs. The probe measures no real GPU; times of real ones are imported."""

from __future__ import annotations

import os
import random
import socket
import statistics
from collections.abc import Sequence
from pathlib import Path

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import read_object

__all__ = ["FakeTiming", "median_and_spread", "timing_backend"]

_MAD_TO_SIGMA = 1.4826
_DISTURBED = 1.5
"""A disturbed repeat takes this many times as long."""


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median and the relative spread (1.4826 MAD / median) of at least one sample.

    PAL profiles with the median, because a single run may be several times slower for other reasons
    than the GPU. The factor makes the spread an estimate of a standard deviation.
    """
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    return middle, _MAD_TO_SIGMA * deviation / middle


class FakeTiming:
    """Times of the fake GPUs, from the file that drives the fake NVML library.

    A sample is ``base_ms`` of the class times the GPU's slowness times seeded noise, so that a
    machine always gives the same samples.
    """

    name = "fake"

    def __init__(self, machine: Path, state: Path) -> None:
        """``state``: folder whose ``override.json`` may change slowness. Raises SourceError."""
        self._file = machine
        self._machine = read_object(machine)
        override = state / "override.json"
        self._override = read_object(override) if override.exists() else {}

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the machine file."""
        return tuple(self._machine.get("classes", {}))

    def samples(self, index: int, uuid: str, app_class: str, repeats: int) -> list[float]:
        """Return ``repeats`` times, the same ones on each call. Units: ms. Raises SourceError."""
        entry = self._machine.get("classes", {}).get(app_class)
        if entry is None:
            known = ", ".join(self.classes) or "none"
            raise SourceError(f"{self._file}: no class {app_class!r}; its classes: {known}")
        expected = float(entry["base_ms"]) * self._slowness(index, uuid, app_class)
        noise = float(self._machine.get("noise", 0.0))
        outliers = float(self._machine.get("outliers", 0.0))
        seed = f"{self._machine.get('seed', 0)}/{uuid}/{app_class}"
        draw = random.Random(seed)  # noqa: S311 - noise that must repeat
        return [
            expected
            * max(0.1, 1.0 + noise * draw.gauss(0.0, 1.0))
            * (_DISTURBED if draw.random() < outliers else 1.0)
            for _ in range(repeats)
        ]

    def _slowness(self, index: int, uuid: str, app_class: str) -> float:
        entry = next((e for e in self._machine.get("gpus", []) if e.get("uuid") == uuid), None)
        if entry is None:
            raise SourceError(f"{self._file}: no GPU {uuid}")
        own = entry.get("slowness", {}).get(app_class, 1.0)
        override = self._override.get("slowness", {}).get(str(index), {})
        return float(override.get(app_class, own))


def timing_backend(name: str | None = None) -> FakeTiming | None:
    """The backend of this name, or without a name one that works on this node; None: there is none.

    Raises SourceError if the named one is not known or cannot work here.
    """
    if name not in (None, FakeTiming.name):
        raise SourceError(f"unknown timing backend {name!r}; known: {FakeTiming.name}")
    host = socket.gethostname().partition(".")[0]
    machine = Path(os.environ.get("FAKE_NVML_MACHINE") or f"/etc/gpu-aware-fake/{host}.json")
    if machine.exists():
        state = os.environ.get("FAKE_NVML_STATE") or f"/shared/fakegpu/{host}"
        return FakeTiming(machine, Path(state))
    if name is None:
        return None
    raise SourceError(f"timing backend {name!r} cannot work here: no fake machine on this node")
