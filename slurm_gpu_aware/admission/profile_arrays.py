"""Profile arrays: scores, models and link graphs of a profile, and the clusters made of them.

The store replaces a profile as a whole, so the arrays are kept for as long as profile and nodes are
the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.penalties import LevelPenalties
from slurm_gpu_aware.model.profile import Link, Profile
from slurm_gpu_aware.slurm.words import by_number
from slurm_gpu_aware.topology.locality import build_levels


@dataclass(frozen=True, eq=False)
class ProfileArrays:
    """Arrays of N nodes with at most W slots."""

    scores: Mapping[str, FloatArray]  # Class -> (N, W); 1.0 if not measured.
    models: Mapping[str, str] = field(default_factory=dict)
    """Node -> GPU model, as the probe names it."""
    graphs: tuple[HardwareGraph | None, ...] = ()
    """Graph of each node; empty if no link was measured."""
    numa: IntArray | None = None
    """(N, W) NUMA node of each GPU, -1 if not known; None: there is no profile."""

    def cluster(
        self,
        names: Sequence[str],
        exists: BoolArray,
        penalties: Mapping[str, float] | LevelPenalties,
        network: Mapping[str, Mapping[str, str]] | None,
        **fields: Any,
    ) -> Cluster:
        """The cluster of the nodes, with the locality levels of `build_levels`."""
        levels = build_levels(
            penalties, names, exists.shape[1], numa=self.numa, graphs=self.graphs, network=network
        )
        return Cluster.build(
            names, exists, scores=self.scores, graphs=self.graphs, levels=levels, **fields
        )


@lru_cache(maxsize=1)
def profile_arrays(
    profile: Profile | None,
    nodes: tuple[str, ...],
    slots: tuple[int, ...],
    classes: tuple[str, ...],
) -> ProfileArrays:
    """Arrays of a profile. ``slots``: largest GPU index of each node, plus one."""
    width = max(slots, default=0)
    scores = {name: np.ones((len(nodes), width)) for name in classes}
    if profile is None:
        return ProfileArrays(scores)
    places = {name: i for i, name in enumerate(nodes)}
    for app_class, array in scores.items():
        for (node, slot), value in profile.scores.get(app_class, {}).items():
            if node in places and slot < width and math.isfinite(value) and value > 0:
                array[places[node], slot] = value
    models = {n: record.model for (n, _), record in profile.gpus.items() if record.model}
    numa = np.full((len(nodes), width), -1, dtype=np.int64)
    for (node, slot), record in profile.gpus.items():
        if node in places and slot < width and record.numa is not None:
            numa[places[node], slot] = record.numa
    graphs: tuple[HardwareGraph | None, ...] = ()
    if profile.links:
        # A GPU of unknown socket counts as one of the first socket.
        sockets = np.maximum(numa, 0).tolist()
        graphs = tuple(
            _graph(
                profile.links.get(name),
                count,
                tuple(row[:count]),
                profile.effbw.get(models.get(name, "")),
            )
            for name, count, row in zip(nodes, slots, sockets, strict=True)
        )
    return ProfileArrays(scores, models, graphs, numa)


@lru_cache(maxsize=65536)
def _graph(
    links: tuple[Link, ...] | None,
    slots: int,
    sockets: tuple[int, ...],
    effbw: tuple[float, ...] | None,
) -> HardwareGraph | None:
    """Graph of one kind of node; a few kB each, so the cache holds the largest clusters."""
    if links is None:
        return None
    inside = [link for link in links if max(link.a, link.b) < slots]
    try:
        return HardwareGraph.from_links(inside, n=slots, groups=sockets, effbw=effbw)
    except ValueError:
        return None


def profiled_cluster(
    profile: Profile, penalties: LevelPenalties, network: Mapping[str, Mapping[str, str]]
) -> Cluster:
    """The nodes of the profile in natural order (n2 before n10), all GPUs free, without Slurm."""
    slots_of: dict[str, list[int]] = {}
    for node, slot in profile.gpus:
        slots_of.setdefault(node, []).append(slot)
    names = sorted(slots_of, key=by_number)
    widths = [1 + max(slots_of[name]) for name in names]
    exists = np.zeros((len(names), max(widths)), dtype=np.bool_)
    for row, name in enumerate(names):
        exists[row, slots_of[name]] = True
    models = [{profile.gpus[name, slot].model for slot in slots_of[name]} for name in names]
    model = tuple(found.pop() if len(found) == 1 else None for found in models)
    arrays = profile_arrays(profile, tuple(names), tuple(widths), tuple(profile.scores))
    return arrays.cluster(names, exists, penalties, network, model=model)
