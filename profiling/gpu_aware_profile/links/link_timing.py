"""Backends that measure links: fake GPUs, or copies and NCCL of real ones; and the choice of one.

Real GPUs are measured by a child process with CuPy and NCCL (`nccl_worker`): CUDA and NCCL may hang
or end the process, and after an error CUDA may refuse everything; then the next request starts
another process. Requests and answers are lines of JSON. Of fake GPUs the bandwidths are a model
over the node's links, with seeded noise.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import combinations
from typing import Any, NamedTuple, Protocol, Self

from gpu_aware_profile.backends.cupy_library import ensure_compile_cache
from gpu_aware_profile.backends.fake_timing import FakeMachine, fake_machine
from gpu_aware_profile.child import Child
from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.model.hardware_graph import HardwareGraph, direct_links
from slurm_gpu_aware.text_file import read_object
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import Pattern

COPY_SHARE, RING_SHARE = 0.94, 0.85
"""Share of the nominal bandwidth that copies and all-reduce get."""
DIRECT_US, HOST_US = 0.9, 1.8
_RING = Pattern("ring")
_SIZE_BYTES = 1 << 28
_PROGRAM = (sys.executable, "-P", "-m", "gpu_aware_profile.links.nccl_worker")
_MOST_WORDS = 400


class PairReading(NamedTuple):
    """Result between two GPUs a, b. None: not measured. Units: GB/s."""

    ab_gbps: float | None
    """From a to b."""
    ba_gbps: float | None
    both_gbps: float | None
    """Sum of both directions at once."""
    latency_us: float | None
    """One load from the other GPU's memory, mean of both directions."""


class AllReduceReading(NamedTuple):
    """Result of an all-reduce."""

    gbps: float
    """Bus bandwidth, 2(k-1)/k of the message over its time. GB/s."""
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
    fake = FakeLinks.of_this_node(list(uuids), graph)
    if fake is not None:
        return fake
    if find_spec("cupy") is None:
        raise SourceError(not_installed("CuPy", "gpu"))
    return NcclLinks(uuids, visible_variable, stopped)


class FakeLinks:
    """A `link_timing.LinkTiming`.

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
        draw = random.Random(f"{self._seed}/{what}")  # noqa: S311 - noise that must repeat
        return max(0.1, 1.0 + self._noise * draw.gauss(0.0, 1.0))


class NcclLinks:
    """A `link_timing.LinkTiming`."""

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
        self._lines: Iterator[str] = iter(())

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
            self._lines = self._child.lines()
        self._child.renew_limit(limit_s)
        self._child.write(json.dumps(request) + "\n")
        for line in self._lines:
            try:
                answer = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(answer, dict):
                return answer
        raise SourceError("the measuring process ended without an answer")


def _number(answer: Mapping[str, Any], key: str) -> float | None:
    value = answer.get(key)
    return float(value) if isinstance(value, int | float) else None
