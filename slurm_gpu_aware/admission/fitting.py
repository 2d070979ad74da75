"""Fit of a request by counts, to select a partition and to find jobs to leave to Slurm.

The planner chooses the GPUs; it can still find that a job must wait.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.socket_views import views

__all__ = ["fits", "fits_idle", "needs_both_kinds"]


def fits(request: Request, cluster: Cluster, *, idle: bool) -> bool:
    """Whether enough nodes have enough for the request, now or (``idle``) in the idle cluster.

    On several indexed nodes the same GPU indices must be free. The check counts indices that are
    free on enough nodes; it does not check that these are the same nodes for each index.
    """
    if request.bound and cluster.sockets is not None:
        return any(fits(r, view, idle=idle) for r, view in views(request, cluster, idle=idle))
    gpus = cluster.exists if idle else cluster.free
    counts = gpus.sum(axis=1)
    allowed = np.ones(len(counts), np.bool_) if request.eligible is None else request.eligible
    for nodes in request.node_counts(cluster.shape[1]):
        each = request.gpus // nodes
        able = allowed & (counts >= each) & _has_rest(request, cluster, nodes, idle)
        kinds = [cluster.indexed, ~cluster.indexed]
        if request.whole_node:
            able &= counts == cluster.exists.sum(axis=1)
            kinds = [np.ones(len(counts), np.bool_)]
        for kind in kinds:
            here = able & kind
            for inside in _by_group(here, request, nodes):
                if not all(inside[i] for i in request.required):
                    continue
                picked_by_slurm = request.whole_node or not cluster.indexed[inside].all()
                if nodes == 1 or picked_by_slurm or not cluster.same_indices:
                    return True
                if int((gpus[inside].sum(axis=0) >= nodes).sum()) >= each:
                    return True
    return False


def fits_idle(request: Request, context: AdmissionContext) -> bool:
    """`fits` in the idle cluster, computed once a round for all requests that fit alike."""
    key = (
        request.gpus,
        request.gpus_per_node,
        request.min_nodes,
        request.max_nodes,
        request.required,
        request.whole_node,
        request.bound,
        request.several_sockets,
        request.total_cpus,
        id(request.eligible),  # kept alive by context.eligible
        request.node_groups is not None,  # there is only context.groups
    )
    if key not in context.idle:
        context.idle[key] = fits(request, context.cluster, idle=True)
    return context.idle[key]


def _by_group(here: BoolArray, request: Request, nodes: int) -> Iterator[BoolArray]:
    """Sets of at least ``nodes`` nodes within which a job may use any."""
    if request.node_groups is None:
        if int(here.sum()) >= nodes:
            yield here
        return
    of = request.node_groups.of
    sizes = np.bincount(of[here & (of >= 0)])
    for group in np.flatnonzero(sizes >= nodes):
        yield here & (of == group)


def _has_rest(request: Request, cluster: Cluster, nodes: int, idle: bool) -> BoolArray:
    """(N,) nodes with the CPUs and, unless ``idle``, the memory of the request."""
    able = np.ones(cluster.shape[0], dtype=np.bool_)
    cpus = cluster.cpus if idle or request.whole_node else cluster.free_cpus
    if cpus is not None:
        able &= cpus >= request.cpus_on_node(nodes)
    if request.whole_node and not idle and cluster.cpus is not None:
        able &= cluster.free_cpus >= cluster.cpus
    if not idle:
        able &= cluster.free_memory_mb >= request.memory_on_node(nodes)
    return able


def needs_both_kinds(request: Request, cluster: Cluster) -> bool:
    """Whether the request fits on idle nodes only if it gets indexed and plain nodes."""
    indexed = cluster.indexed
    if request.whole_node or indexed.all() or not indexed.any():
        return False
    counts = cluster.exists.sum(axis=1)
    if request.eligible is not None:
        counts = np.where(request.eligible, counts, 0)
    fits_mixed = False
    for nodes in request.node_counts(cluster.shape[1]):
        able = counts >= request.gpus // nodes
        kinds = [k for k in (indexed, ~indexed) if all(k[i] for i in request.required)]
        if any(int((able & k).sum()) >= nodes for k in kinds):
            return False
        # Without a required node (drained, just restarted) the job waits.
        fits_mixed |= int(able.sum()) >= nodes and all(able[i] for i in request.required)
    return fits_mixed
