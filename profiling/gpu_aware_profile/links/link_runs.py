"""Measurement of a node's links: each pair of GPUs, then an all-reduce of each link mix."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

from gpu_aware_profile.devices.driver import Faults
from gpu_aware_profile.links.link_timing import LinkTiming, link_backend
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import ALL_REDUCE, HardwareGraph
from slurm_gpu_aware.topology.link_mixes import informative_order, link_mixes

SIZES = range(2, 9)
"""GPUs of a collective."""
MOST_SETS = 128
"""Link mixes that are measured of a node; the most informative ones."""
_MOST_FAILED = 3
"""A GPU that took part in so many failures is left out."""
_LIMIT_S = 60.0
"""Limit of one pair or one set, the start of CUDA and NCCL included."""
_CALL = "links"


@dataclass
class LinkRuns:
    """What was measured so far, as the report has it."""

    ends: float
    """Monotonic time after which nothing begins."""
    progress: Callable[[str], None]
    stopped: threading.Event
    """Set by a signal: then nothing begins."""
    faults: Faults
    """``errors`` of the report; an entry for each failure."""
    left_out: int = 0
    """Measurements that were not tried: no time was left, or too many of a GPU had failed."""
    _failed: Counter[int] = field(default_factory=Counter)
    """GPU -> failures in which it took part."""

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
