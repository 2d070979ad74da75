"""Profile arrays: scores, models and link graphs of a profile for the nodes that Slurm shows.

The store replaces a profile as a whole, so the arrays are kept for as long as profile and nodes are
the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.profile import Link, Profile

__all__ = ["ProfileArrays", "profile_arrays"]


@dataclass(frozen=True, eq=False)
class ProfileArrays:
    """Arrays of N nodes with at most W slots."""

    scores: Mapping[str, FloatArray]
    """Class -> (N, W); 1.0 if not measured."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Node -> GPU model, as the probe names it."""
    graphs: tuple[HardwareGraph | None, ...] = ()
    """Graph of each node; empty if no link was measured."""
    numa: IntArray | None = None
    """(N, W) NUMA node of each GPU, -1 if not known; None: there is no profile."""


_Key = tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]
_last: tuple[Profile | None, _Key, ProfileArrays] | None = None


def profile_arrays(
    profile: Profile | None,
    nodes: Sequence[str],
    slots: Sequence[int],
    classes: Sequence[str],
) -> ProfileArrays:
    """Arrays of a profile. ``slots``: largest GPU index of each node, plus one."""
    global _last
    key = (tuple(nodes), tuple(slots), tuple(classes))
    last = _last
    if last is not None and last[0] is profile and last[1] == key:
        return last[2]
    width = max(slots, default=0)
    scores = {name: np.ones((len(nodes), width)) for name in classes}
    arrays = ProfileArrays(scores)
    if profile is not None:
        places = {name: i for i, name in enumerate(nodes)}
        _fill(scores, profile, places, width)
        models = {n: record.model for (n, _), record in profile.gpus.items() if record.model}
        numa = np.full((len(nodes), width), -1, dtype=np.int64)
        for (name, slot), record in profile.gpus.items():
            if name in places and slot < width and record.numa is not None:
                numa[places[name], slot] = record.numa
        arrays = ProfileArrays(scores, models, _graphs(profile, nodes, slots), numa)
    _last = (profile, key, arrays)
    return arrays


def _fill(
    scores: Mapping[str, FloatArray], profile: Profile, places: Mapping[str, int], width: int
) -> None:
    for name, array in scores.items():
        for (node, slot), value in profile.scores.get(name, {}).items():
            if node in places and slot < width and math.isfinite(value) and value > 0:
                array[places[node], slot] = value


def _graphs(
    profile: Profile, nodes: Sequence[str], slots: Sequence[int]
) -> tuple[HardwareGraph | None, ...]:
    if not profile.links:
        return ()
    graphs: list[HardwareGraph | None] = []
    for name, count in zip(nodes, slots, strict=True):
        links = profile.links.get(name)
        if links is None:
            graphs.append(None)
            continue
        records = [profile.gpus.get((name, slot)) for slot in range(count)]
        # A GPU of unknown socket counts as one of the first socket.
        sockets = [max(0, r.numa) if r is not None and r.numa is not None else 0 for r in records]
        graphs.append(_graph(links, count, tuple(sockets)))
    return tuple(graphs)


@lru_cache(maxsize=65536)
def _graph(links: tuple[Link, ...], slots: int, sockets: tuple[int, ...]) -> HardwareGraph | None:
    """Graph of one kind of node; a few kB each, so the cache holds the largest clusters."""
    inside = [link for link in links if max(link.a, link.b) < slots]
    try:
        return HardwareGraph.from_links(inside, n=slots, groups=sockets)
    except ValueError:
        return None
