"""Reasons of ``topo-aware``: the option that gives a job no place."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.drb.options import TopoOptions
from slurm_gpu_aware.placement.drb.search import search
from slurm_gpu_aware.placement.feasible import common_reason
from slurm_gpu_aware.placement.shapes import splits

__all__ = ["constraint_reason"]


def constraint_reason(
    policy: str, request: Request, cluster: Cluster, options: TopoOptions
) -> str | None:
    """Say in one sentence which constraint leaves the job without a place.

    Called if the search finds nothing. None: the constraints do not affect this job, so
    ``feasible.common_reason`` is the reason.
    """
    need = options.min_bandwidth_gbps
    if need > 0.0:
        without = replace(options, min_bandwidth_gbps=0.0, single_node=options.one_machine)
        if search(request, cluster, without) is not None:
            return (
                f"no set that would fit has links of at least {need:g} GB/s between all its GPUs"
                f" (min_bandwidth_gbps of policy {policy})"
            )
    choices = splits(request, cluster)
    if options.one_machine and any(split.nodes != 1 for split in choices):
        what = "single_node" if options.single_node else f"min_bandwidth_gbps {need:g}"
        rate = "" if options.single_node else f" (network_gbps {options.network_gbps:g})"
        return f"{what} of policy {policy} keeps it on one node{rate}: {_on_one(request, cluster)}"
    if options.anti_collocation and any(split.per_node != 1 for split in choices):
        apart = _apart(request, cluster)
        return f"anti_collocation of policy {policy} gives each GPU a node of its own: {apart}"
    return None


def _on_one(request: Request, cluster: Cluster) -> str:
    """Reason why one node is not enough."""
    fewest = max(request.min_nodes, len(request.required))
    if request.gpus_per_node is not None:
        fewest = max(fewest, request.gpus // request.gpus_per_node)
    if fewest > 1:
        return f"it asks for {fewest} nodes"
    width = cluster.shape[1]
    if request.gpus > width:
        return f"nodes have at most {width} GPUs"
    return common_reason(replace(request, max_nodes=1), cluster)


def _apart(request: Request, cluster: Cluster) -> str:
    """Reason why the job has no place with one GPU on each node."""
    if request.gpus_per_node not in (None, 1):
        return f"it asks for {request.gpus_per_node} GPUs per node"
    if request.max_nodes is not None and request.max_nodes < request.gpus:
        return f"it asks for {request.max_nodes} node{'s' * (request.max_nodes > 1)} at most"
    return common_reason(replace(request, gpus_per_node=1), cluster)
