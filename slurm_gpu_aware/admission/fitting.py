"""Fit of a request by counts, node groups, sockets: its partition, or that Slurm gets the job.

The planner chooses the GPUs; it can still find that a job must wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError, QueueEntry
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.model.socket_views import socket_views
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmJob
from slurm_gpu_aware.slurm.topology import BLOCK

_SHAPE = attrgetter(
    *("gpus", "gpus_per_node", "min_nodes", "max_nodes", "total_cpus", "required"),
    *("whole_node", "bound", "several_sockets", "gpus_per_socket", "whole_memory"),
    *("memory_mb_per_node", "memory_mb_per_cpu", "memory_mb_per_gpu"),
)
"""Fields by which requests fit an idle cluster alike, beside their nodes."""


def fits(request: Request, cluster: Cluster) -> bool:
    """Whether enough nodes of the cluster, or of the empty one, have enough for the request.

    On several indexed nodes the same GPU indices must be free. The check counts indices that are
    free on enough nodes; it does not check that these are the same nodes for each index.
    """
    if cluster.sockets is not None and request.by_socket:
        return any(fits(one, view) for one, view in socket_views(request, cluster))
    counts = cluster.free.sum(axis=1)
    allowed = np.ones(len(counts), np.bool_) if request.eligible is None else request.eligible
    kinds = [cluster.indexed, ~cluster.indexed]
    if request.whole_node:
        allowed = allowed & (counts == cluster.exists.sum(axis=1))
        kinds = [np.ones(len(counts), np.bool_)]
    for nodes in request.node_counts(cluster.shape[1]):
        each = request.gpus // nodes
        able = allowed & (counts >= each) & _has_rest(request, cluster, nodes)
        for inside in (group for kind in kinds for group in _by_group(able & kind, request, nodes)):
            if not all(inside[i] for i in request.required):
                continue
            picked_by_slurm = request.whole_node or not cluster.indexed[inside].all()
            if nodes == 1 or picked_by_slurm or not cluster.same_indices:
                return True
            if int((cluster.free[inside].sum(axis=0) >= nodes).sum()) >= each:
                return True
    return False


def fits_idle(request: Request, context: AdmissionContext, *, repaired: bool = False) -> bool:
    """`fits` in the empty cluster, computed once a round for all requests that fit alike.

    ``repaired``: with all nodes back and no reservation left.
    """
    where = context.repaired if repaired else context.empty
    request = request.unreserved if repaired else request
    # context.eligible keeps the mask alive; the only groups are context.groups
    kind = request.node_groups is not None, where is context.empty
    key = (_SHAPE(request), id(request.eligible), *kind)
    if key not in context.idle:
        context.idle[key] = fits(request, where)
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


def _has_rest(request: Request, cluster: Cluster, nodes: int) -> BoolArray:
    """(N,) nodes with the CPUs and the memory of the request."""
    able = cluster.free_cpus >= request.cpus_on_node(nodes)
    if request.whole_node and cluster.cpus is not None:
        able &= cluster.free_cpus >= cluster.cpus
    able &= cluster.free_memory_mb >= request.memory_on_node(nodes)
    if request.whole_memory and cluster.memory_mb is not None:
        able &= cluster.free_memory_mb >= cluster.memory_mb
    return np.asarray(able)


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


def most_in_one_group(nodes: BoolArray, required: Sequence[int], entry: QueueEntry) -> int:
    """How many of these nodes the job can have beside the ``required`` ones."""
    groups = None if _own_topology(entry) else entry.context.groups
    if groups is None:
        return int(nodes.sum())
    inside = groups.of >= 0
    if required:
        inside &= groups.of == groups.of[required[0]]  # `required_groups` checks the others
    return int(np.bincount(groups.of[nodes & inside]).max(initial=0))


def required_groups(request: Request, entry: QueueEntry) -> NodeGroups | None:
    """Node groups of which it must not leave one; None: no such rule. Raises CannotPlanError."""
    eligible, context = request.eligible, entry.context
    assert eligible is not None  # noqa: S101 - every translation sets it
    most_there = int(eligible.sum())
    counts = [n for n in request.node_counts(context.cluster.shape[1]) if n <= most_there]
    if entry.form.on_node is not None and entry.original.nodes is not None:
        fewest, largest = entry.original.nodes  # the request has only one number of this range
        counts += [fewest, min(largest or fewest, most_there)]
    least, most = min(counts, default=1), max(counts, default=1)
    if _own_topology(entry):
        if most > 1:
            own = entry.partition.topology
            raise _unsupported(f"its partition has a topology of its own, {own}")
        return None
    groups, fabric = context.groups, context.fabric
    if groups is None:
        return None
    outside = context.chosen(eligible & (groups.of < 0))
    if outside:
        raise _unsupported(f"node {outside[0].name}, which it may use, is in no {groups.name}")
    if most <= 1:
        return None
    if fabric.doubt is not None:
        raise _unsupported(f"Slurm's topology is not clear: {fabric.doubt}")
    if fabric.kind == BLOCK and most > fabric.block_size:
        count = f"{least}" if least == most else f"{least} to {most}"
        raise _unsupported(f"it has {count} nodes, and a block counts as {fabric.block_size}")
    if len({int(groups.of[node]) for node in request.required}) > 1:
        raise _unsupported(f"its required nodes are not in one {groups.name}")
    return groups


def _own_topology(entry: QueueEntry) -> bool:
    return entry.partition.topology not in ("", entry.context.slurm.default_topology)


def _unsupported(why: str) -> CannotPlanError:
    return CannotPlanError(f"{why}; which nodes it gets together is left to Slurm")


def binds_sockets(job: SlurmJob, slurm: SlurmConfig) -> bool:
    """Whether a job gets only cores of its GPUs' sockets, by its option or by default."""
    return slurm.enforce_binding if job.enforce_binding is None else job.enforce_binding


def needs_sockets(gated: GatedJob, slurm: SlurmConfig) -> bool:
    """Whether the sockets of GPUs and cores decide where a job may be placed."""
    return gated.original.tres_per_socket is not None or binds_sockets(gated.job, slurm)


def fills_sockets(original: OriginalRequest, nodes: int) -> bool:
    """Whether Slurm gives a bound job on ``nodes`` nodes every free core beside its GPUs.

    It does unless the job fixes the tasks per node, because it then assumes one task per CPU
    (``eval_nodes_select_cores`` in Slurm's eval_nodes.c). ``--gres=gpu:2`` gets all 8 CPUs of a
    socket, and 1 CPU without binding (``docs/internals/requests.md``).
    """
    tasks = original.num_tasks
    return not (original.ntasks_per_node or original.ntasks_per_tres) and (
        tasks is None or (tasks > 1 and nodes not in (1, tasks))
    )


def bind(request: Request, entry: QueueEntry) -> Request:
    """The request with its rules about sockets; ``--exclusive`` takes all of a node in any case."""
    if request.whole_node:
        return request
    if entry.form.kind == "socket":
        request = replace(request, gpus_per_socket=entry.form.item.count)
    if not binds_sockets(entry.job, entry.context.slurm):
        return request
    most = max(request.min_nodes, request.max_nodes or request.gpus)
    fills = any(fills_sockets(entry.original, n) for n in {request.min_nodes, most})
    # With --gpus and 1 CPU per node Slurm considers only one socket (_socks_per_node).
    several = 2 if entry.form.kind == "job" else 0
    return replace(request, bound=True, fills_sockets=fills, several_sockets=several)


def check_sockets(request: Request, context: AdmissionContext) -> None:
    """Leave a job to Slurm if its sockets cannot be planned. Raises CannotPlanError."""
    spread, sockets = request.gpus_per_socket is not None, context.cluster.sockets
    if not request.by_socket:
        return
    if request.bound and spread:
        raise CannotPlanError("--gpus-per-socket with --gres-flags=enforce-binding")
    option = "--gpus-per-socket" if spread else "--gres-flags=enforce-binding"
    left = f"{option} is left to Slurm"
    if sockets is None or (request.bound and not context.slurm.counts_cores):
        raise CannotPlanError(f"{left}, which counts no single cores here")
    unknown = np.any(context.cluster.exists & (sockets.gpu < 0), axis=1)
    if spread:
        unknown |= ~context.cluster.indexed
    if request.eligible is not None:
        unknown &= request.eligible
    if nodes := context.chosen(unknown):
        name = nodes[0].name
        raise CannotPlanError(f"{left}: the GPUs of node {name} are not each bound to one socket")
    free = replace(request, bound=False, gpus_per_socket=None)
    if fits_idle(free, context, repaired=True) and not fits_idle(request, context, repaired=True):
        why = "no node has so many on each socket" if spread else "no socket has its GPUs and CPUs"
        raise CannotPlanError(f"{left}: {why}" + ("" if spread else " together"))
