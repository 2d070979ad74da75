"""Bandwidths of fake GPUs: a model over the node's links, with seeded noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Self

from gpu_aware_profile.backends.fake_timing import FakeMachine, fake_machine
from gpu_aware_profile.links.link_timing import AllReduceReading, PairReading
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
