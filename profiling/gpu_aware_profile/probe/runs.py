"""Runs: GPUs measured one after the other or all at once, with telemetry, errors and their rows."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_aware_profile.backends.timing import Reading, RunSpec, SickGpuError, Timing
from gpu_aware_profile.child import LateError
from gpu_aware_profile.devices.driver import (
    SYSFS,
    Device,
    EccErrors,
    Event,
    Faults,
    PeerLink,
    in_time,
)
from gpu_aware_profile.probe.telemetry import PERIOD_S, Telemetry
from slurm_gpu_aware.bounds import PROBE_TIME_LIMIT
from slurm_gpu_aware.clocks.job import Setting
from slurm_gpu_aware.errors import DeviceError, SourceError
from slurm_gpu_aware.model.profile import IDLE, LOADED

_CHECK_S = 0.2


@dataclass(frozen=True)
class Wanted:
    """What to measure."""

    classes: Sequence[str] = ()  # Empty: all of the backend.
    runs: int = 3  # Runs of a GPU and class under equal conditions.
    loaded: bool = True  # Whether all GPUs of the node are measured at the same time, too.
    warm_up_s: float = 30.0  # Limit of the warm-up of a run.
    limit_s: float = math.inf  # No run begins later than this after ``began``.
    began: float = field(default_factory=time.monotonic)
    clock_steps: int = 0
    """Clocks at which GPUs are measured besides; more than a GPU supports: all of them."""
    limit_steps: int = 0
    """Power limits below the one in force under which each of these clocks is measured, too."""
    sysfs: Path = SYSFS  # Where the host's sysfs is mounted.
    links_s: float = 0.0  # Time for measuring bandwidths of links; 0: they are not measured.
    progress: Callable[[str], None] = lambda text: None
    """Called with a line of text before each run."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set by a signal: no run begins, and the running ones are ended; what was measured until then
    is reported."""

    @property
    def ends(self) -> float:
        """No run begins later. Units: s of the monotonic clock."""
        return self.began + self.limit_s


@dataclass(frozen=True)
class ReadableGpu:
    """A GPU whose identity can be read. ``index``: Slurm's; ``record``: its entry in the report."""

    index: int
    device: Device
    record: dict[str, Any]
    peers: Sequence[PeerLink]


def fault(index: int | None, error: SourceError) -> dict[str, Any]:
    """Entry of ``errors``; ``index`` None: an error of the node."""
    if isinstance(error, DeviceError | SickGpuError | LateError):
        return {"index": index, "call": error.call, "error": error.reason}
    return {"index": index, "call": "timing", "error": str(error)}


class _Gathering:
    """GPUs that are measured at the same time: all have to be warm, and then to be measured."""

    def __init__(self, parties: int) -> None:
        self._lock = threading.Lock()
        self._missing = dict.fromkeys(("warm", "measured"), parties)
        self._done = {stage: threading.Event() for stage in self._missing}

    def arrive(self, stage: str) -> threading.Event:
        """One GPU more is so far; the event is set when all are."""
        with self._lock:
            self._missing[stage] -= 1
            if self._missing[stage] == 0:
                self._done[stage].set()
        return self._done[stage]


class _Control:
    """`timing.RunControl` of one GPU in a run."""

    def __init__(self, telemetry: Telemetry, gathering: _Gathering, wanted: Wanted) -> None:
        self._telemetry = telemetry
        self._gathering = gathering
        self._warm_up_s = wanted.warm_up_s
        self._ahead = ["warm", "measured"]
        self.stopped = wanted.stopped

    def warm_up(self) -> None:
        began = time.monotonic()  # before, the GPU was idle, whose temperature is steady, too
        ends = began + self._warm_up_s
        while not (
            self._telemetry.steady(began) or self.stopped.is_set() or time.monotonic() > ends
        ):
            self.stopped.wait(PERIOD_S)
        self._arrive("warm").wait()

    def window(self) -> AbstractContextManager[None]:
        return self._telemetry.window()

    def company(self) -> threading.Event:
        return self._arrive("measured")

    def _arrive(self, stage: str) -> threading.Event:
        self._ahead.remove(stage)
        return self._gathering.arrive(stage)

    def leave(self) -> None:
        """The others no longer wait for this GPU."""
        for stage in list(self._ahead):
            self._arrive(stage)


@dataclass
class Measurement:
    """The measurement of a node's GPUs with one backend."""

    gpus: Sequence[ReadableGpu]
    timing: Timing
    visible_variable: str
    faults: Faults
    events: Callable[[], list[Event]]
    wanted: Wanted
    sick: set[int] = field(default_factory=set)  # GPUs that are not measured any more.

    def idle(
        self, classes: Sequence[str], runs: int, settings: Mapping[int, Setting] | None = None
    ) -> list[dict[str, Any]]:
        """Measure GPU by GPU; return timings of the report.

        ``settings``: GPU -> what it is set to; without one its clock is not locked.

        The runs of a GPU lie as far apart as possible, so that what disturbs the node for a while
        disturbs one of them.
        """
        rows = []
        for number in range(runs):
            for gpu in self.gpus:
                for app_class in classes:
                    rows += self._together([gpu], app_class, IDLE, number)
        for row in rows:
            row["clock_mhz"], row["limit_w"] = (settings or {}).get(row["index"], (0, 0))
        return rows

    def loaded(self, classes: Sequence[str], runs: int) -> list[dict[str, Any]]:
        """Measure all GPUs at the same time; return timings of the report."""
        rows = []
        for number in range(runs):
            for app_class in classes:
                rows += self._together(self.gpus, app_class, LOADED, number)
        return rows

    def _together(
        self, gpus: Sequence[ReadableGpu], app_class: str, neighbours: str, number: int
    ) -> list[dict[str, Any]]:
        """One run of each GPU, at the same time; a GPU without a time has a fault."""
        ecc = {gpu.index: counts for gpu in gpus if (counts := self._answers(gpu)) is not None}
        healthy = [gpu for gpu in gpus if gpu.index in ecc]
        if not healthy or self.wanted.stopped.is_set():
            return []
        if time.monotonic() > self.wanted.ends:
            self._note({"index": None, "call": PROBE_TIME_LIMIT, "error": "it left out some runs"})
            return []
        names = ", ".join(str(gpu.index) for gpu in healthy)
        self.wanted.progress(f"GPU {names}: class {app_class}, {neighbours}, run {number + 1}")
        gathering = _Gathering(len(healthy))
        rows: dict[int, dict[str, Any]] = {}

        def measure(gpu: ReadableGpu) -> None:
            row = self._run(gpu, app_class, neighbours, number, gathering)
            if row is not None:
                rows[gpu.index] = row

        threads = [threading.Thread(target=measure, args=[gpu], daemon=True) for gpu in healthy]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # with a time limit, so that signals are seen
                thread.join(_CHECK_S)
        broken = self._broken(healthy, ecc)
        return [row for index, row in sorted(rows.items()) if index not in broken]

    def _answers(self, gpu: ReadableGpu) -> EccErrors | None:
        """Error counts of a GPU; None: it is sick, or lost, which is a fault."""
        if gpu.index in self.sick:
            return None
        try:
            return in_time("ecc_errors", gpu.device.ecc_errors)
        except DeviceError as exc:
            if exc.lost:
                self._give_up(gpu, exc)
                return None
            self._note(fault(gpu.index, exc))
            return EccErrors(None, None)

    def _new_events(self) -> list[Event]:
        try:
            return in_time("events", self.events)
        except DeviceError as exc:
            self._note(fault(None, exc))
            self.events = list  # not asked again
            return []

    def _give_up(self, gpu: ReadableGpu, error: SourceError) -> None:
        self.sick.add(gpu.index)
        self._note(fault(gpu.index, error))

    def _note(self, entry: dict[str, Any]) -> None:
        """Add a fault, unless an earlier run had the same."""
        if entry not in self.faults:
            self.faults.append(entry)

    def _run(
        self,
        gpu: ReadableGpu,
        app_class: str,
        neighbours: str,
        number: int,
        gathering: _Gathering,
    ) -> dict[str, Any] | None:
        uuid = gpu.record["uuid"]
        environment = {self.visible_variable: uuid}
        spec = RunSpec(gpu.index, uuid, environment, app_class, neighbours, number)
        with Telemetry(gpu.device) as telemetry:
            control = _Control(telemetry, gathering, self.wanted)
            try:
                reading = self.timing.measure(spec, control)
            except (SickGpuError, LateError) as exc:  # it computes wrong results, or hangs
                self._give_up(gpu, exc)
                return None
            except SourceError as exc:
                if not self.wanted.stopped.is_set():
                    self._note(fault(gpu.index, exc))
                return None
            finally:
                control.leave()
        if telemetry.fault is not None:
            if telemetry.fault.lost:
                self._give_up(gpu, telemetry.fault)
                return None
            self._note(fault(gpu.index, telemetry.fault))
        return _row(spec, reading, telemetry)

    def _broken(self, gpus: Sequence[ReadableGpu], ecc: dict[int, EccErrors]) -> set[int]:
        """GPUs of which the driver reported errors during a run: its time does not count."""
        broken = set()
        by_pci = {gpu.record["pci"]: gpu.index for gpu in self.gpus}
        for event in self._new_events():
            index = by_pci.get(event.pci)
            self._note({"index": index, "call": event.call, "error": event.error})
            if event.critical:
                broken.add(index)
        for gpu in gpus:
            after = self._answers(gpu)
            if after is None:
                continue
            gpu.record["ecc_corrected"], gpu.record["ecc_uncorrected"] = after
            new = (after.uncorrected or 0) - (ecc[gpu.index].uncorrected or 0)
            if new > 0:
                error = f"{new} uncorrected memory errors during a run"
                self._note({"index": gpu.index, "call": "ecc", "error": error})
                broken.add(gpu.index)
        return {index for index in broken if index is not None}


def _row(spec: RunSpec, reading: Reading, telemetry: Telemetry) -> dict[str, Any]:
    kernels = [kernel._asdict() for kernel in reading.kernels]
    return {
        "index": spec.slot,
        "class": spec.app_class,
        "neighbours": spec.neighbours,
        "clock_mhz": 0,
        "limit_w": 0,
        "value_ms": float(f"{reading.value_ms:.6g}"),
        "samples": reading.samples,
        "spread": None if reading.spread is None else round(reading.spread, 5),
        **telemetry.conditions(reading.value_ms),
        **({"kernels": kernels} if kernels else {}),
    }
