"""Fit of a request: eligible nodes, counts, node groups, sockets; or that Slurm gets the job.

Nodes are eligible by partition, features, ``-x`` and reservations. The planner chooses the GPUs; it
can still find that a job must wait.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError, QueueEntry
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.node_users import left_open
from slurm_gpu_aware.model.request import NodeGroups, Request, SocketRules
from slurm_gpu_aware.model.room import room_beside
from slurm_gpu_aware.model.socket_views import socket_views
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmJob, SlurmPartition, SlurmReservation
from slurm_gpu_aware.slurm.topology import BLOCK
from slurm_gpu_aware.slurm.words import expand_hostlist, matches

_SHAPE = attrgetter(
    *("gpus", "gpus_per_node", "min_nodes", "max_nodes", "total_cpus", "memory", "sockets"),
    *("nodes.required", "nodes.whole"),
)
"""Fields by which requests fit an idle cluster alike, beside their nodes."""


def open_partitions(job: SlurmJob, context: AdmissionContext) -> list[SlurmPartition]:
    """The job's partitions that take it now, highest tier first. Raises CannotPlanError."""
    known = [context.partitions[p] for p in job.partitions if p in context.partitions]
    up = [p for p in known if p.up]
    if not up:
        raise CannotPlanError("its partition is not up", leave=False)
    fit = [p for p in up if job.time_limit_s is None or job.time_limit_s <= p.max_time_s]
    if not fit:
        raise CannotPlanError("its time limit is longer than its partition allows", leave=False)
    return sorted(fit, key=lambda p: -p.priority_tier)


def allowed_nodes(entry: QueueEntry, blocked: frozenset[str] = frozenset()) -> BoolArray:
    """(N,) nodes that partition, features and ``-x`` allow, without the ``blocked`` ones.

    Raises CannotPlanError if only nodes with shared GPUs are allowed, where Slurm places, or none
    has GPUs of the request's type alone.
    """
    context, original = entry.context, entry.original
    kind = entry.form.item.kind
    key = (entry.partition.name, original.exc_nodes, original.features, kind, blocked)
    if key not in context.eligible:
        names = context.cluster.nodes
        if blocked:
            is_open = np.array([name not in blocked for name in names], dtype=np.bool_)
            allowed = allowed_nodes(entry) & is_open
        else:
            may_use = _may_use(entry)
            allowed = np.array([may_use(name) for name in names], dtype=np.bool_)
            if not allowed.any():
                leave_if_shared(entry)
                if kind is not None:
                    raise CannotPlanError(f"none of its nodes has GPUs of type {kind} alone")
        context.eligible[key] = allowed
    return context.eligible[key]


def leave_if_shared(entry: QueueEntry) -> None:
    """Raise CannotPlanError if the job may use nodes with shared GPUs."""
    may_use = _may_use(entry)
    if any(node.shared_gres and may_use(node.name) for node in entry.context.nodes.values()):
        why = "the GPUs of its nodes are cut in parts (MPS, MIG, shards that Slurm counts by node)"
        raise CannotPlanError(why)


def _may_use(entry: QueueEntry) -> Callable[[str], bool]:
    """Function: whether partition, features, ``-x`` and GPU type allow a node, by its name.

    A node with GPUs of several types is none: its GPUs count alike.
    """
    original, nodes, kind = entry.original, entry.context.nodes, entry.form.item.kind
    excluded = set(expand_hostlist(original.exc_nodes)) if original.exc_nodes else set()
    return lambda name: (
        name in entry.partition.nodes
        and name not in excluded
        and (kind is None or all((k or "").lower() == kind.lower() for k, _ in nodes[name].gpus))
        and matches(original.features, nodes[name].features)
    )


def eligible_nodes(entry: QueueEntry, limit_s: float) -> BoolArray:
    """(N,) nodes that also reservations allow. See `allowed_nodes`. Raises CannotPlanError."""
    return allowed_nodes(entry, frozenset(_reserved(entry.job, entry.context, limit_s)))


def _reserved(job: SlurmJob, context: AdmissionContext, limit_s: float) -> set[str]:
    """Nodes that reservations keep from the job during its time limit."""
    end_s = context.now + limit_s
    overlapping = [r for r in context.reservations if r.start_s < end_s and r.end_s > context.now]
    wanted = set((job.reservation or "").split(",")) - {""}
    if not wanted:
        return set().union(*(r.nodes for r in overlapping))
    inside: set[str] = set()
    for own in context.reservations:
        if own.name not in wanted:
            continue
        if own.name in context.partial:
            raise CannotPlanError(f"reservation {own.name} holds only a part of its nodes")
        flex = "FLEX" in own.flags  # its jobs are not bound to its nodes, nor to its time
        if own.active_at(context.now) or flex:
            others = [r for r in overlapping if r is not own and _goes_first(r, own, context)]
            mine = frozenset(context.cluster.nodes) if flex else own.nodes
            inside |= mine.difference(*(r.nodes for r in others))
    return set(context.cluster.nodes) - inside


def _goes_first(other: SlurmReservation, own: SlurmReservation, context: AdmissionContext) -> bool:
    """Whether it keeps jobs of ``own`` from nodes of both (24.11: job_test_resv, reservation.c)."""
    if other.name in context.partial or "MAINT" in own.flags:
        return False
    return "OVERLAP" not in own.flags or "MAINT" in other.flags


def check_not_shut_out(
    entry: QueueEntry, eligible: BoolArray, allowed: BoolArray, required: tuple[int, ...]
) -> None:
    """Leave a job to Slurm if a reservation of its nodes may let it in.

    Only Slurm knows which jobs a MAGNETIC reservation takes, and which cores and GPUs a reservation
    of a part of a node leaves. Raises CannotPlanError.
    """
    context = entry.context
    if entry.job.reservation or (eligible.any() and all(eligible[i] for i in required)):
        return
    here = {node.name for node in context.chosen(allowed & ~eligible)}
    for reservation in context.reservations:
        magnetic = "MAGNETIC" in reservation.flags and reservation.active_at(context.now)
        if here & reservation.nodes and (magnetic or reservation.name in context.partial):
            name = reservation.name
            raise CannotPlanError(f"reservation {name} holds its nodes, and may let it in")


def fits(request: Request, cluster: Cluster) -> bool:
    """Whether enough nodes of the cluster, or of the empty one, have enough for the request.

    On several indexed nodes the same GPU indices must be free. The check counts indices that are
    free on enough nodes; it does not check that these are the same nodes for each index.
    """
    if cluster.sockets is not None and request.sockets.given:
        return any(fits(one, view) for one, view in socket_views(request, cluster))
    counts = cluster.free.sum(axis=1)
    eligible = request.nodes.eligible
    allowed = np.ones(len(counts), np.bool_) if eligible is None else eligible
    allowed = left_open(allowed, cluster.users, request)
    kinds = [cluster.indexed, ~cluster.indexed]
    if request.nodes.whole:
        allowed = allowed & (counts == cluster.exists.sum(axis=1))
        kinds = [np.ones(len(counts), np.bool_)]
    for nodes in request.node_counts(cluster.shape[1]):
        each = request.gpus // nodes
        share = request.cpus_on_node(nodes), request.memory_on_node(nodes)
        able = allowed & (counts >= each) & room_beside(request, cluster, *share)[1]
        for inside in (group for kind in kinds for group in _by_group(able & kind, request, nodes)):
            if not all(inside[i] for i in request.nodes.required):
                continue
            picked_by_slurm = request.nodes.whole or not cluster.indexed[inside].all()
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
    kind = request.nodes.groups is not None, where is context.empty
    key = (_SHAPE(request), id(request.nodes.eligible), *kind)
    if key not in context.idle:
        context.idle[key] = fits(request, where)
    return bool(context.idle[key])


def _by_group(here: BoolArray, request: Request, nodes: int) -> Iterator[BoolArray]:
    """Sets of at least ``nodes`` nodes within which a job may use any."""
    if request.nodes.groups is None:
        if int(here.sum()) >= nodes:
            yield here
        return
    of = request.nodes.groups.of
    counts = np.bincount(of[here & (of >= 0)])
    for group in np.flatnonzero(counts >= nodes):
        yield here & (of == group)


def needs_both_kinds(request: Request, cluster: Cluster) -> bool:
    """Whether the request fits on idle nodes only if it gets indexed and plain nodes."""
    indexed = cluster.indexed
    if request.nodes.whole or indexed.all() or not indexed.any():
        return False
    counts = cluster.exists.sum(axis=1)
    if request.nodes.eligible is not None:
        counts = np.where(request.nodes.eligible, counts, 0)
    fits_mixed = False
    for nodes in request.node_counts(cluster.shape[1]):
        able = counts >= request.gpus // nodes
        kinds = [k for k in (indexed, ~indexed) if all(k[i] for i in request.nodes.required)]
        if any(int((able & k).sum()) >= nodes for k in kinds):
            return False
        # Without a required node (drained, just restarted) the job waits.
        fits_mixed |= int(able.sum()) >= nodes and all(able[i] for i in request.nodes.required)
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
    eligible, context = request.nodes.eligible, entry.context
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
    if len({int(groups.of[node]) for node in request.nodes.required}) > 1:
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
    if request.nodes.whole:
        return request
    if entry.form.kind == "socket":
        request = replace(request, sockets=SocketRules(gpus_each=entry.form.item.count))
    if not binds_sockets(entry.job, entry.context.slurm):
        return request
    most = max(request.min_nodes, request.max_nodes or request.gpus)
    fills = any(fills_sockets(entry.original, n) for n in {request.min_nodes, most})
    # With --gpus and 1 CPU per node Slurm considers only one socket (_socks_per_node).
    several = 2 if entry.form.kind == "job" else 0
    rules = replace(request.sockets, bound=True, fills=fills, several=several)
    return replace(request, sockets=rules)


def check_sockets(request: Request, context: AdmissionContext) -> None:
    """Leave a job to Slurm if its sockets cannot be planned. Raises CannotPlanError."""
    spread, sockets = request.sockets.gpus_each is not None, context.cluster.sockets
    if not request.sockets.given:
        return
    if request.sockets.bound and spread:
        raise CannotPlanError("--gpus-per-socket with --gres-flags=enforce-binding")
    option = "--gpus-per-socket" if spread else "--gres-flags=enforce-binding"
    left = f"{option} is left to Slurm"
    if sockets is None or (request.sockets.bound and not context.slurm.counts_cores):
        raise CannotPlanError(f"{left}, which counts no single cores here")
    unknown = np.any(context.cluster.exists & (sockets.gpu < 0), axis=1)
    if spread:
        unknown |= ~context.cluster.indexed
    if request.nodes.eligible is not None:
        unknown &= request.nodes.eligible
    if nodes := context.chosen(unknown):
        name = nodes[0].name
        raise CannotPlanError(f"{left}: the GPUs of node {name} are not each bound to one socket")
    free = request.on_any_sockets
    if fits_idle(free, context, repaired=True) and not fits_idle(request, context, repaired=True):
        why = "no node has so many on each socket" if spread else "no socket has its GPUs and CPUs"
        raise CannotPlanError(f"{left}: {why}" + ("" if spread else " together"))
