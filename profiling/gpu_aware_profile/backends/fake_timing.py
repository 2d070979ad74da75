"""Fake GPUs: the files that drive the fake NVML library, and times from them."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpu_aware_profile.backends.timing import Reading, RunControl, RunSpec, median_and_spread
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.profile import LOADED
from slurm_gpu_aware.text_file import read_object

_ITERATIONS = 25
_DISTURBED = 1.5
"""A disturbed iteration takes this many times as long."""


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
    def of_this_node(cls) -> FakeTiming | None:
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
        clock = self._clock_factor(run.slot, float(entry.get("clock_share", 0.0)))
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

    def _clock_factor(self, index: int, share: float) -> float:
        """Time at the clock that is set over that at the default one.

        ``share``: part of the time at the default clock that scales with 1 / clock.
        """
        default = self._machine.get("clocks", {}).get("default_mhz")
        for setting in ("locked_clocks", "applications_clocks"):
            with suppress(OSError, ValueError, IndexError):
                mhz = int((self._state / f"gpu{index}.{setting}").read_text().split()[1])
                return 1.0 - share + share * float(default or mhz) / mhz
        return 1.0

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
