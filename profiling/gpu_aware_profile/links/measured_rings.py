"""Measured all-reduces of the store as samples for a fit of EffBW."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.hardware_graph import ALL_REDUCE, HardwareGraph
from slurm_gpu_aware.model.profile import GpuRecord, Link
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import listed, newest_collectives
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import fitted_ring, match
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT

_RING = Pattern("ring")


class MeasuredRing(NamedTuple):
    """One measured set of GPUs."""

    graph: HardwareGraph
    """Links of its node."""
    gpus: tuple[int, ...]
    counts: tuple[int, int, int]
    """x, y, z of eq. 2 for the fitted ring."""
    slowest_gbps: float
    """Nominal bandwidth of the slowest link of the best ring."""
    gbps: float
    """Measured bus bandwidth."""


def measured_rings(store: Store, model: str | None) -> tuple[str, list[MeasuredRing]]:
    """The name of a GPU model, and the newest all-reduce of each set of its GPUs.

    Sets of several models, and of GPUs whose links are not known, are left out. ``model``: as
    `GpuRecord.model`; None: the only one. Raises StoreError if there is no
    measurement of it, or if ``model`` is None and several were measured.
    """
    profile = load_profile(store)
    graphs = {node: _graph(links) for node, links in profile.links.items()}
    of_model: dict[str, list[MeasuredRing]] = {}
    for one in newest_collectives(store, ALL_REDUCE):
        found = [profile.gpus.get((one.node, slot), GpuRecord()).model for slot in one.gpus]
        name, graph = found[0], graphs.get(one.node)
        if name is None or len(set(found)) > 1 or len(one.gpus) > MAX_EXACT:
            continue
        if graph is None or one.gpus[-1] >= graph.n:
            continue
        sample = MeasuredRing(graph, one.gpus, *_nominal(graph, one.gpus), one.gbps)
        of_model.setdefault(name, []).append(sample)
    known = listed(sorted(of_model), 20)
    if not of_model:
        raise StoreError("no all-reduce was measured: 'gpu-aware-profile sweep --links'")
    if model is None and len(of_model) > 1:
        raise StoreError(f"several GPU models were measured ({known}); choose one by --model")
    if model is not None and model not in of_model:
        raise StoreError(f"no all-reduce was measured on model {model!r}; measured: {known}")
    name = model or next(iter(of_model))
    return name, of_model[name]


@lru_cache(maxsize=1 << 16)
def _nominal(graph: HardwareGraph, gpus: tuple[int, ...]) -> tuple[tuple[int, int, int], float]:
    """Counts of the fitted ring, and the slowest link of the best one; equal on equal nodes."""
    return fitted_ring(graph, gpus), match(graph, gpus, _RING, BOTTLENECK).eff_gbps


def _graph(links: Sequence[Link]) -> HardwareGraph:
    return HardwareGraph.from_links(links, n=1 + max(link.b for link in links))
