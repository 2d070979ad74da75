"""Measured all-reduces of the store as samples for a fit of EffBW."""

from __future__ import annotations

from typing import NamedTuple

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.interconnect import ALL_REDUCE
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.interconnect import newest_collectives
from slurm_gpu_aware.store.measurements import listed
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import fitted_ring, match
from slurm_gpu_aware.topology.patterns import Pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT

__all__ = ["MeasuredRing", "measured_rings"]

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


def measured_rings(store: Store, model: str | None) -> list[MeasuredRing]:
    """The newest all-reduce of each set of GPUs of a model.

    ``model``: as `GpuRecord.model`; None: the only one. Raises StoreError if there is no
    measurement of it, or if ``model`` is None and several were measured.
    """
    profile = load_profile(store)
    of_model: dict[str, list[MeasuredRing]] = {}
    for one in newest_collectives(store, ALL_REDUCE):
        models = {profile.gpus[one.node, slot].model for slot in one.gpus}
        name = models.pop()
        if name is None or models or len(one.gpus) > MAX_EXACT or one.node not in profile.links:
            continue
        graph = _graph(profile, one.node)
        slowest = match(graph, one.gpus, _RING, BOTTLENECK).eff_gbps
        sample = MeasuredRing(graph, one.gpus, fitted_ring(graph, one.gpus), slowest, one.gbps)
        of_model.setdefault(name, []).append(sample)
    known = listed(sorted(of_model), 20)
    if not of_model:
        raise StoreError("no all-reduce was measured: 'gpu-aware-profile sweep --links'")
    if model is None and len(of_model) > 1:
        raise StoreError(f"several GPU models were measured ({known}); choose one by --model")
    if model is not None and model not in of_model:
        raise StoreError(f"no all-reduce was measured on model {model!r}; measured: {known}")
    return of_model[model or next(iter(of_model))]


def _graph(profile: Profile, node: str) -> HardwareGraph:
    links = profile.links[node]
    width = 1 + max(slot for name, slot in profile.gpus if name == node)
    return HardwareGraph.from_links(links, n=width)
