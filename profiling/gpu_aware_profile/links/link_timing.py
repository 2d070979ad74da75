"""Backends that measure links: what all of them take and give, and the choice of one.

They are `fake_links` (fake GPUs) and `nccl_links` (copies and NCCL through CuPy).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple, Protocol

from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.model.hardware_graph import HardwareGraph


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
    from gpu_aware_profile.links.fake_links import FakeLinks
    from gpu_aware_profile.links.nccl_links import NcclLinks

    fake = FakeLinks.of_this_node(list(uuids), graph)
    if fake is not None:
        return fake
    if find_spec("cupy") is None:
        raise SourceError(not_installed("CuPy", "gpu"))
    return NcclLinks(uuids, visible_variable, stopped)
