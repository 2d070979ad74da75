"""Requests of jobs that are left to Slurm: what a round must know to open their gate in turn.

Slurm chooses nodes and GPUs, so counts suffice, and Slurm's own record of the job has them for
every form of request. Only nodes that partition, features, node lists and reservations allow count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.admission.context import (
    AdmissionContext,
    CannotPlanError,
    QueueEntry,
    Standing,
)
from slurm_gpu_aware.admission.fitting import (
    allowed_nodes,
    eligible_nodes,
    open_partitions,
)
from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.admission.node_use import gets_whole_nodes, is_alone, sharing_of
from slurm_gpu_aware.admission.reach import of_partitions, on_other_nodes, open_to, reach
from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.filter_rules import WHOLE_NODES
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import Form
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.request import (
    TIER,
    Cpus,
    LeftToSlurm,
    NodeRules,
    Part,
    Request,
)
from slurm_gpu_aware.slurm.gres import GpuItem, gpus_and_shards
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode, SlurmPartition, SlurmReservation
from slurm_gpu_aware.slurm.updates import TRES_FIELDS
from slurm_gpu_aware.slurm.words import understood

_NO_FORM = Form("node", GpuItem(1, None, ()))


def left_request(
    gated: GatedJob,
    context: AdmissionContext,
    reason: str,
    app_class: str,
    components: Sequence[SlurmJob] = (),
    *,
    again: bool = False,
) -> Request:
    """The request of a job, or array task, that is left to Slurm.

    ``components``: the other ones of a heterogeneous job. ``again``: a round narrowed its nodes,
    and it did not start there. Raises CannotPlanError: it waits, or its turn cannot be told.
    """
    job = gated.job
    parts = _parts(gated, context, reason, components)
    gpus, whole = sum(part.gpus for part in parts), any(part.whole for part in parts)
    if gpus > MAX_GPUS:
        there = np.count_nonzero(context.cluster.exists) >= gpus
        raise CannotPlanError(f"it asks for more than {MAX_GPUS} GPUs", leave=bool(there))
    managed, named = context.config.site.partitions, {*job.partitions}
    named = named.union(*(one.partitions for one in components))
    if managed and named.isdisjoint(managed):
        raise CannotPlanError("its partition is not managed")
    entries = [QueueEntry(gated, _NO_FORM, p, context) for p in open_partitions(job, context)]
    others = _other_entries(gated, components, context)
    last = entries[-1]  # Slurm may start it in any of them: it stands as in the lowest one
    limit_s = max(entry.limit_s for entry in entries)
    found = [_nodes(entry, limit_s) for entry in entries]
    found += [of_partitions(one, context) for one in components]
    masks = zip(*found, strict=True)
    eligible, allowed = (_same(np.logical_or.reduce(kind), context) for kind in masks)
    places = {name: i for i, name in enumerate(context.cluster.nodes)}
    required = tuple(places[name] for name in job.req_nodes if name in places)
    on_each = np.count_nonzero(context.cluster.exists[eligible], axis=1)
    fewest = int(min(on_each[on_each > 0], default=1))  # GPUs of a node that it may get whole
    gpus = gpus or fewest * sum(part.min_nodes for part in parts if part.whole)
    return Request(
        job_id=job.id,
        gpus=gpus,
        min_nodes=max(1, sum(part.min_nodes for part in parts)),
        app_class=app_class,
        clock="default",
        user=job.user,
        nodes=NodeRules(
            eligible,
            allowed,
            required,
            whole=whole,
            # Of one component it counts on the nodes of all.
            alone=any(one.alone for one in (*entries, *others)),
            sharing=max((one.sharing for one in (*entries, *others)), key=lambda one: one.shares),
        ),
        cpus=Cpus(max(1, sum(part.cpus for part in parts))),
        time_limit_s=max([limit_s, *(one.limit_s for one in others)]),  # it ends with its last one
        **_standing(last, others),
        # Its record has no node lists of other components, to which they could be given back.
        left=LeftToSlurm(
            reason, parts, fixed=gated.original.partial or bool(components), again=again
        ),
    )


def _parts(
    gated: GatedJob, context: AdmissionContext, reason: str, components: Sequence[SlurmJob]
) -> tuple[Part, ...]:
    """Its own part, then those of its other components. Raises CannotPlanError: its gate opens."""
    job, asked = gated.job, gated.original.nodes
    # Slurm writes the most nodes of a range into its record once it has tried the job. More than
    # these are of a change that it refused in another part.
    tried = asked is not None and asked[0] < job.min_nodes <= (asked[1] or asked[0])
    own = replace(job, min_nodes=asked[0]) if asked and tried else job
    first = _on_nodes(own, _own_part(own, gated.original), context)
    parts = (first, *(_on_nodes(one, part_of(one), context) for one in components))
    whole = any(part.whole for part in parts)
    if any(part.gpus for part in parts):
        return parts
    if reason != WHOLE_NODES and not components:  # its request was too long for our record
        return (replace(first, gpus=0 if whole else 1, elsewhere=False),)
    if not whole:
        raise CannotPlanError("it asks for no GPUs")
    if all(part.elsewhere for part in parts):
        why = "it asks for no GPUs, and nodes without GPUs may have room for it"
        raise CannotPlanError(why, leave=bool(components) or not on_other_nodes(own, context))
    return parts


def _other_entries(
    gated: GatedJob, components: Sequence[SlurmJob], context: AdmissionContext
) -> list[QueueEntry]:
    """The other components of a heterogeneous job, each in all its partitions."""
    return [
        QueueEntry(replace(gated, job=one), _NO_FORM, context.partitions[name], context)
        for one in components
        for name in one.partitions
        if name in context.partitions
    ]


def _standing(entry: QueueEntry, others: Sequence[QueueEntry]) -> Standing:
    """Its place in the queue; that of a heterogeneous job is its lowest component's."""
    own, standing = entry.partition.priority_tier, entry.standing()
    lower = own - min([own, *(one.partition.priority_tier for one in others)])
    return {**standing, "priority": standing["priority"] - TIER * lower}


def _nodes(entry: QueueEntry, limit_s: float) -> tuple[BoolArray, BoolArray]:
    """(N,) nodes that the job may get in this partition, too many rather than too few; and those
    that it may get when no reservation is left."""
    if not understood(entry.original.features):
        names = entry.context.cluster.nodes
        every = np.array([name in entry.partition.nodes for name in names], dtype=np.bool_)
        return every, every
    allowed = allowed_nodes(entry)  # raises if only nodes are allowed whose GPUs are cut in parts
    try:
        eligible = eligible_nodes(entry, limit_s)
    except CannotPlanError:
        return allowed, allowed  # only Slurm knows what its reservation leaves
    return (eligible if eligible.any() else allowed), allowed  # none is up: it waits for one


def _same(mask: BoolArray, context: AdmissionContext) -> BoolArray:
    """The same array for equal masks, as `AdmissionContext.eligible` asks for."""
    return context.eligible.setdefault(("left", mask.tobytes()), mask)


def hold_of_left(
    gated: GatedJob,
    nodes: Mapping[str, SlurmNode],
    partitions: Mapping[str, SlurmPartition],
    reservations: Sequence[SlurmReservation],
    app_class: str,
    now: float,
    components: Sequence[SlurmJob] = (),
) -> Hold:
    """As `holds.hold_of`, for a released job of which Slurm chooses nodes and GPUs.

    CPUs and memory do not count: on which nodes it gets them is not known.
    """
    job = gated.job
    every = (job, *components)
    named = {p for one in every for p in one.partitions}
    there = set().union(*(partitions[p].nodes for p in named if p in partitions))
    there &= set(job.req_nodes) or there
    there -= {*job.exc_nodes}
    if not components:
        there &= open_to(job, nodes, reservations, now)
    names = tuple(name for name in nodes if name in there)
    part = _own_part(job, gated.original)
    more = sum(part_of(one).gpus for one in components)
    whole = gets_whole_nodes(job, partitions)
    on_each = (sum(count for _, count in nodes[name].gpus) for name in names)
    fewest = min(filter(None, on_each), default=0)
    return Hold(
        job_id=job.id,
        nodes=names,
        slots=(),
        gpus_per_node=0,
        cpus_per_node=0,
        memory_mb_per_node=0,
        end_s=gated.opened_s(now) + max(one.longest_s for one in every),
        app_class=app_class,
        user=job.user,
        alone=any(is_alone(one, partitions) for one in every),
        sharing=max((sharing_of(one, partitions) for one in every), key=lambda one: one.shares),
        gpus=max(1, part.gpus + more, fewest * job.min_nodes if whole else 0),
        emptiest=whole,
        shards=part.shards,
    )


def spread(part: Part, nodes: int) -> Part:
    """What of a part is on so many of its nodes."""
    of, fields = max(1, part.min_nodes), ("cpus", "memory_mb", "tasks")
    share = {name: -(-getattr(part, name) * nodes // of) for name in fields}
    return replace(part, min_nodes=nodes, **share)


def part_of(job: SlurmJob) -> Part:
    """The GPUs of a job, or of one component, by Slurm's record."""
    gpus, shards, per_node = _counts(job)
    return Part(
        gpus=gpus,
        per_node=per_node,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        cpus=job.cpus,
        memory_mb=0 if job.memory_mb_per_node == 0 else job.req_tres.get("mem", 0),
        node_memory_mb=job.memory_mb_per_node or 0,
        shards=shards,
        tasks=1 if gpus else job.tasks,
    )


def _on_nodes(job: SlurmJob, part: Part, context: AdmissionContext) -> Part:
    """The part of a job with what its nodes say."""
    whole = gets_whole_nodes(job, context.partitions)
    if part.gpus:
        return replace(part, whole=whole)
    most, others = reach(job, context)
    if whole and most:  # with their GPUs: they wait for as many as there are
        return replace(spread(part, min(part.min_nodes, most)), whole=True)
    return replace(part, whole=whole, elsewhere=others > 0)


def _own_part(job: SlurmJob, asked: OriginalRequest) -> Part:
    """The same of a job, or a first component, by our record if Slurm's shows no GPUs.

    Slurm hides them in an update that it refuses, and gives them to the job nevertheless.
    """
    texts = {name: getattr(asked, name) for name in TRES_FIELDS.values()}
    part = part_of(job)
    return part if part.gpus else part_of(replace(job, **texts))


def _counts(job: SlurmJob) -> tuple[int, int, int | None]:
    """(GPUs of all nodes together, shards on each node, GPUs on each node or None)."""
    on_node, shards = gpus_and_shards(job.tres_per_node)
    of_job, job_shards = gpus_and_shards(job.tres_per_job)
    of_task, task_shards = gpus_and_shards(job.tres_per_task)
    on_socket, socket_shards = gpus_and_shards(job.tres_per_socket)
    counted = job.req_tres.get("gres/gpu", 0)
    per_node = on_node or None
    total = of_job or of_task * job.tasks or on_socket * job.min_nodes or on_node * job.min_nodes
    shares = shards or job_shards or task_shards or socket_shards
    if not total and not counted and shares:
        return job.min_nodes, shares, 1
    total = max(total, counted)
    return total, 0, per_node if per_node and per_node * job.min_nodes == total else None
