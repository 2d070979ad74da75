"""Measurement of a node's links: each pair of GPUs, then an all-reduce of each link mix.

Real GPUs are measured by a child process with CuPy and NCCL (`nccl_worker`): CUDA and NCCL may hang
or end the process, and after an error CUDA may refuse everything; then the next request starts
another process. Requests and answers are lines of JSON.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from typing import Any, NamedTuple, Protocol

from gpu_aware_profile.backends.timing import brought, ensure_compile_cache
from gpu_aware_profile.child import Child, objects
from gpu_aware_profile.devices.driver import Faults
from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.model.hardware_graph import ALL_REDUCE, HardwareGraph
from slurm_gpu_aware.topology.link_mixes import informative_order, link_mixes

_PROGRAM = (sys.executable, "-P", "-m", "gpu_aware_profile.links.nccl_worker")
_MOST_WORDS = 400
SIZES = range(2, 9)  # GPUs of a collective.
MOST_SETS = 128  # Link mixes that are measured of a node; the most informative ones.
_MOST_FAILED = 3  # A GPU that took part in so many failures is left out.
_LIMIT_S = 60.0  # Limit of one pair or one set, the start of CUDA and NCCL included.
_CALL = "links"


class PairReading(NamedTuple):
    """Result between two GPUs a, b. None: not measured. Units: GB/s."""

    ab_gbps: float | None  # From a to b.
    ba_gbps: float | None
    both_gbps: float | None  # Sum of both directions at once.
    latency_us: float | None  # One load from the other GPU's memory, mean of both directions.


class AllReduceReading(NamedTuple):
    """Result of an all-reduce."""

    gbps: float  # Bus bandwidth, 2(k-1)/k of the message over its time. GB/s.
    size_bytes: int


class LinkTiming(Protocol):
    """A backend. GPUs are named by Slurm's index. Results are verified."""

    name: str

    def pair(self, a: int, b: int, limit_s: float) -> PairReading:
        """Measure within ``limit_s``. Raises SourceError."""

    def all_reduce(self, gpus: Sequence[int], limit_s: float) -> AllReduceReading:
        """Measure within ``limit_s``. Raises SourceError."""

    def close(self) -> None:
        """End what runs in the background."""


def link_backend(
    uuids: Mapping[int, str], graph: HardwareGraph, visible_variable: str, stopped: threading.Event
) -> LinkTiming:
    """The backend that works on this node.

    ``uuids``: Slurm's index -> UUID, ascending. ``graph``: links of these GPUs in this order.
    ``visible_variable``: limits a process to the GPUs whose UUIDs it holds. ``stopped``: ends a
    measurement early when it is set. Raises SourceError that says what is missing.
    """
    other: LinkTiming | None = brought("links", list(uuids), graph)
    if other is not None:
        return other
    if find_spec("cupy") is None:
        raise SourceError(not_installed("CuPy", "gpu"))
    return NcclLinks(uuids, visible_variable, stopped)


class NcclLinks:
    """A `link_runs.LinkTiming`."""

    name = "nccl"

    def __init__(
        self,
        uuids: Mapping[int, str],
        visible_variable: str,
        stopped: threading.Event,
        program: Sequence[str] = _PROGRAM,
    ) -> None:
        """Arguments as for `link_backend`. ``program``: of the child."""
        ensure_compile_cache()
        self._at = {slot: position for position, slot in enumerate(uuids)}
        # CUDA numbers the devices in this order.
        self._environment = {visible_variable: ",".join(uuids.values())}
        self._stopped = stopped
        self._program = program
        self._running = ExitStack()
        self._child: Child | None = None
        self._answers: Iterator[Mapping[str, Any]] = iter(())

    def pair(self, a: int, b: int, limit_s: float) -> PairReading:
        answer = self._ask({"pair": [self._at[a], self._at[b]]}, limit_s)
        return PairReading(*(_number(answer, key) for key in PairReading._fields))

    def all_reduce(self, gpus: Sequence[int], limit_s: float) -> AllReduceReading:
        answer = self._ask({"all_reduce": [self._at[slot] for slot in gpus]}, limit_s)
        gbps, size_bytes = _number(answer, "gbps"), _number(answer, "size_bytes")
        if gbps is None or size_bytes is None:
            raise SourceError("the measuring process gave no bandwidth")
        return AllReduceReading(gbps, int(size_bytes))

    def close(self) -> None:
        self._child = None
        self._running.close()

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        try:
            answer = self._answer(request, limit_s)
        except SourceError:
            self.close()
            raise
        if "error" in answer:
            self.close()
            raise SourceError(str(answer["error"])[:_MOST_WORDS])
        return answer

    def _answer(self, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        if self._child is None:
            environment = os.environ | self._environment
            self._child = self._running.enter_context(
                Child(self._program, environment, stopped=self._stopped, given=None)
            )
            self._answers = objects(self._child.lines())
        self._child.renew_limit(limit_s)
        self._child.write(json.dumps(request) + "\n")
        for answer in self._answers:
            return answer
        raise SourceError("the measuring process ended without an answer")


def _number(answer: Mapping[str, Any], key: str) -> float | None:
    value = answer.get(key)
    return float(value) if isinstance(value, int | float) else None


@dataclass
class LinkRuns:
    """What was measured so far, as the report has it."""

    ends: float  # Monotonic time after which nothing begins.
    progress: Callable[[str], None]
    stopped: threading.Event  # Set by a signal: then nothing begins.
    faults: Faults  # ``errors`` of the report; an entry for each failure.
    left_out: int = 0
    """Measurements that were not tried: no time was left, or too many of a GPU had failed."""
    _failed: Counter[int] = field(default_factory=Counter)  # GPU -> failures in which it took part.

    def pairs(self, backend: LinkTiming, slots: Sequence[int]) -> list[dict[str, Any]]:
        """``bandwidths`` of the report."""
        rows = []
        for number, (a, b) in enumerate(pairs := list(combinations(slots, 2)), 1):
            what = f"pair {number} of {len(pairs)}: GPU {a} and {b}"
            found = self._tried(what, (a, b), partial(backend.pair, a, b))
            if found is not None:
                rows.append({"a": a, "b": b} | _rounded(found._asdict()))
        return rows

    def all_reduces(
        self, backend: LinkTiming, sets: Sequence[Sequence[int]]
    ) -> list[dict[str, Any]]:
        """``collectives`` of the report."""
        rows = []
        for number, gpus in enumerate(sets, 1):
            words = " ".join(map(str, gpus))
            what = f"all-reduce {number} of {len(sets)}: GPUs {words}"
            found = self._tried(what, gpus, partial(backend.all_reduce, gpus))
            if found is not None:
                row = {"gpus": list(gpus), "operation": ALL_REDUCE}
                rows.append(row | _rounded(found._asdict()))
        return rows

    def _tried(self, what: str, gpus: Sequence[int], measure: Callable[[float], Any]) -> Any:
        """Result, or None if there is no time or it failed."""
        left_s = self.ends - time.monotonic()
        broken = max(self._failed[gpu] for gpu in gpus) >= _MOST_FAILED
        if left_s <= 0.0 or broken or self.stopped.is_set():
            self.left_out += 1
            return None
        self.progress(what)
        try:
            return measure(min(_LIMIT_S, left_s))
        except SourceError as exc:
            if self.stopped.is_set():
                return None
            self._failed.update(gpus)
            self.faults.append({"index": None, "call": _CALL, "error": f"{what}: {exc}"})
            return None


def measure_links(
    runs: LinkRuns,
    uuids: Mapping[int, str],
    links: Sequence[Mapping[str, Any]],
    visible_variable: str,
) -> dict[str, Any]:
    """Measure and return fields of the report: ``link_backend``, ``bandwidths``, ``collectives``.

    ``uuids``: Slurm's index -> UUID of the GPUs to measure. ``links``: those of the report.
    ``visible_variable``: limits a process to the GPUs whose UUIDs it holds.
    """
    slots = sorted(uuids)
    at = {slot: position for position, slot in enumerate(slots)}
    graph = HardwareGraph.from_links(
        [
            (at[k["a"]], at[k["b"]], k["class"], k["gbps"])
            for k in links
            if at.keys() >= {k["a"], k["b"]}
        ],
        n=len(slots),
    )
    mixes = informative_order(graph, link_mixes(graph, SIZES))
    if not mixes:
        return {}
    try:
        in_order = {slot: uuids[slot] for slot in slots}
        backend = link_backend(in_order, graph, visible_variable, runs.stopped)
    except SourceError as exc:
        runs.faults.append({"index": None, "call": _CALL, "error": str(exc)})
        return {}
    sets = [[slots[i] for i in mix.gpus] for mix in mixes[:MOST_SETS]]
    try:
        measured = {
            "bandwidths": runs.pairs(backend, slots),
            "collectives": runs.all_reduces(backend, sets),
        }
    finally:
        backend.close()
    if runs.left_out:
        runs.progress(f"{runs.left_out} measurements of links were left out")
    return {"link_backend": backend.name, **measured}


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        k: v if v is None or isinstance(v, int) else float(f"{v:.5g}") for k, v in values.items()
    }
