"""Times of the fake GPUs: backends that the probe finds by the entry points of this folder.

The same machine always gives the same times: all noise is seeded. Of links the bandwidths are a
model over those of the node.
"""

import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from gpu_aware_profile.backends.timing import Reading, RunControl, RunSpec, median_and_spread
from gpu_aware_profile.levels.level_step import BATCHES, Rank
from gpu_aware_profile.links.link_runs import AllReduceReading, PairReading
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, direct_links
from slurm_gpu_aware.model.profile import LOADED
from slurm_gpu_aware.text_file import read_object
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import Pattern

COPY_SHARE, RING_SHARE = 0.94, 0.85
"""Share of the nominal bandwidth that copies and all-reduce get."""
DIRECT_US, HOST_US = 0.9, 1.8
_RING = Pattern("ring")
_SIZE_BYTES = 1 << 28
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
        draw = random.Random("/".join(map(str, seed)))
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


class FakeLinks:
    """A `link_runs.LinkTiming`.

    A copy gets a share of the nominal bandwidth of its link, an all-reduce a share of the slowest
    link of the best ring. ``link_slowness`` of the machine file or of the override divides the
    bandwidth of a pair.
    """

    name = "fake"

    def __init__(self, files: FakeMachine, slots: Sequence[int], graph: HardwareGraph) -> None:
        """``slots``: Slurm's index of each GPU of the graph. Raises SourceError."""
        machine = read_object(files.file)
        override = files.state / "override.json"
        slowness = machine.get("link_slowness", {})
        slowness |= read_object(override).get("link_slowness", {}) if override.exists() else {}
        self._noise = float(machine.get("noise", 0.0))
        self._seed = f"{machine.get('seed', 0)}/{machine.get('node', '')}"
        self._at = {slot: position for position, slot in enumerate(slots)}
        links = []
        for a, b in combinations(range(graph.n), 2):
            slower = float(slowness.get(f"{slots[a]}-{slots[b]}", 1.0))
            links.append((a, b, graph.classes[a][b], graph.gbps.item(a, b) / slower))
        self._graph = HardwareGraph.from_links(links, n=graph.n)

    @classmethod
    def of_this_node(cls, slots: Sequence[int], graph: HardwareGraph) -> Self | None:
        """None: the GPUs of this node are not fake. Raises SourceError."""
        files = fake_machine()
        return None if files is None else cls(files, slots, graph)

    def pair(self, a: int, b: int, limit_s: float) -> PairReading:
        one, other = self._at[a], self._at[b]
        copy = COPY_SHARE * self._graph.gbps.item(one, other)
        latency_us = DIRECT_US if direct_links(self._graph.classes[one][other]) else HOST_US
        return PairReading(
            copy * self._factor("copy", a, b),
            copy * self._factor("copy", b, a),
            2.0 * copy * self._factor("both", a, b),
            latency_us * self._factor("latency", a, b),
        )

    def all_reduce(self, gpus: Sequence[int], limit_s: float) -> AllReduceReading:
        positions = tuple(sorted(self._at[slot] for slot in gpus))
        slowest = match(self._graph, positions, _RING, BOTTLENECK).eff_gbps
        return AllReduceReading(RING_SHARE * slowest * self._factor("ring", *gpus), _SIZE_BYTES)

    def close(self) -> None:
        pass

    def _factor(self, *what: object) -> float:
        draw = random.Random(f"{self._seed}/{what}")
        return max(0.1, 1.0 + self._noise * draw.gauss(0.0, 1.0))


class FakeSteps:
    """Steps of fake GPUs: time of the class, times the factor of the level (``levels``)."""

    def __init__(self, timing: FakeTiming, machine: Mapping[str, Any], rank: Rank, level: str):
        self._timing, self._machine = timing, machine
        self._gpu, self._level = rank.gpu, level

    @classmethod
    def of_this_node(cls, rank: Rank, level: str) -> Self | None:
        """None: the GPUs of this node are not fake. Raises SourceError."""
        files = fake_machine()
        if files is None:
            return None
        return cls(FakeTiming(*files), read_object(files.file), rank, level)

    def unique_id(self) -> bytes:
        return b"fake"

    def join(self, unique_id: bytes) -> None:
        if unique_id != b"fake":
            raise SourceError(f"the id of the group is {unique_id!r}")

    def times_ms(self, app_class: str, size_bytes: int) -> list[float]:
        entry = self._machine.get("classes", {}).get(app_class)
        if entry is None:
            raise SourceError(f"the fake GPUs have no class {app_class!r}")
        uuids = {gpu["minor"]: gpu["uuid"] for gpu in self._machine["gpus"]}
        if self._gpu not in uuids:
            raise SourceError(f"no GPU {self._gpu}")
        factor = float(self._machine.get("levels", {}).get(app_class, {}).get(self._level, 1.0))
        specs = (
            RunSpec(self._gpu, uuids[self._gpu], {}, app_class, LOADED, number)
            for number in range(BATCHES)
        )
        return [factor * median(self._timing.iterations(spec, entry)) for spec in specs]
