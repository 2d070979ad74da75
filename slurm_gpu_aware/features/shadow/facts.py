"""Facts about a set of GPUs for a job: score, links, and whole nodes that it breaks up. Pure."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from slurm_gpu_aware.features.shadow.record import GpuSet
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import direct_links
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT


def gpu_set(
    gpus: Sequence[tuple[int, Sequence[int]]],
    request: Request,
    cluster: Cluster,
    measured: Mapping[str, Collection[Gpu]],
) -> GpuSet:
    """What a set of GPUs costs a job on the cluster before its start.

    ``gpus``: (node index, slots). ``measured``: class -> GPUs that have a score of their own.
    """
    chosen = sorted((node, tuple(sorted(slots))) for node, slots in gpus if slots)
    nodes, slots = [node for node, _ in chosen], [each for _, each in chosen]
    score, level, slowdown = predicted_slowdown(cluster, request.app_class, nodes, slots)
    known = measured.get(request.app_class, ())
    scored = all((cluster.nodes[n], slot) in known for n, each in chosen for slot in each)
    gbps, direct = _links(chosen, request, cluster)
    return GpuSet(
        gpus=tuple((cluster.nodes[node], each) for node, each in chosen),
        level=level,
        score=score if scored else None,
        slowdown=slowdown if scored else None,
        gbps=gbps,
        direct=direct,
        broken=tuple(cluster.nodes[n] for n, each in chosen if _breaks(cluster, n, each)),
    )


def _breaks(cluster: Cluster, node: int, slots: Sequence[int]) -> bool:
    """Whether GPUs are a part of a node that is whole: all its GPUs are free."""
    there = cluster.exists[node]
    whole = bool(np.array_equal(cluster.free[node] & there, there))
    return whole and len(slots) < int(there.sum())


def _links(
    chosen: Sequence[tuple[int, tuple[int, ...]]], request: Request, cluster: Cluster
) -> tuple[float | None, bool | None]:
    """(EffBW of the slowest node, whether all pairs that communicate there have direct links)."""
    pattern = parse_pattern(request.pattern)
    slowest, direct = float("inf"), True
    for node, slots in chosen:
        if len(slots) < 2:
            continue
        graph = cluster.graphs[node] if cluster.graphs else None
        if graph is None or graph.n > MAX_EXACT or slots[-1] >= graph.n:
            return None, None
        best = match(graph, slots, pattern, BOTTLENECK)
        if not best.links_gbps:
            return None, None
        slowest = min(slowest, best.eff_gbps)
        pairs = best.pairs(request.pattern)
        direct &= all(direct_links(graph.classes[a][b]) for a, b in pairs)
    return (None, None) if slowest == float("inf") else (slowest, direct)
