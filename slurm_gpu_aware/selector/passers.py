"""Jobs that do not wait at the gate: those that may take GPUs past it, and all that need nodes.

A few kinds of jobs cannot wait at the gate (``passes_gate`` in gpu_aware_unsupported.lua), and the
filter does not see all that get whole nodes with their GPUs. `selector.head_guard` holds what is
kept for the first waiting job against them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.left import part_of
from slurm_gpu_aware.admission.outside import Outside
from slurm_gpu_aware.admission.snapshot import NODES_TAKEN, is_usable, standing_of
from slurm_gpu_aware.gate.admin_comment import is_ours, marker_of, parse
from slurm_gpu_aware.gate.typed_requests import can_start, gpu_types
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.left_to_slurm import LeftPolicy
from slurm_gpu_aware.planning.timeline import Timeline
from slurm_gpu_aware.slurm.gres import gpus_and_shards
from slurm_gpu_aware.slurm.records import SlurmJob, components_of
from slurm_gpu_aware.slurm.updates import TRES_FIELDS

_SOON_S = 10.0  # two rounds (`selector.round_s`)
_MOST_OUTSIDE = 100
_FOR_ROOM = "None", "Priority", "Resources", "ReqNodeNotAvail", NODES_TAKEN
"""Starts of the reasons of jobs that wait for nodes, or that Slurm has not tried. It names nodes
that are down (``ReqNodeNotAvail,_UnavailableNodes:n9``) where others are reserved, too."""


def passes_gate(
    job: SlurmJob, exclusive: Set[str] = frozenset(), components: Sequence[SlurmJob] = ()
) -> bool:
    """Whether it is a pending job with an open gate that gets GPUs, also in unmanaged partitions.

    Slurm gives a job of whole nodes all GPUs there. ``exclusive``: partitions of such jobs.
    ``components``: the other ones of a heterogeneous job.
    """
    if job.state != "PENDING":
        return False
    whole = [
        one
        for one in (job, *components)
        if one.exclusive or not exclusive.isdisjoint(one.partitions)
    ]
    if is_ours(job.admin_comment):
        if _is_in(JobPhase.RELEASED, job) and components:  # planned with them, but these anywhere
            return not all(_asks_gpus(one) for one in whole)
        if not _is_in(JobPhase.LEFT, job):
            return False
        record = parse(job.admin_comment)
        if record is None or record.partial:
            return True
        # Slurm hides the GPUs of a job in an update that it refuses
        texts = {name: getattr(record, name) for name in TRES_FIELDS.values()}
        components = *components, replace(job, req_tres={}, **texts)
    return bool(whole) or any(_asks_gpus(one) for one in (job, *components))


def _asks_gpus(job: SlurmJob) -> bool:
    asked = job.tres_per_node, job.tres_per_job, job.tres_per_task, job.tres_per_socket
    return job.req_tres.get("gres/gpu", 0) > 0 or any(any(gpus_and_shards(one)) for one in asked)


def passers(
    jobs: Iterable[SlurmJob], context: AdmissionContext, *, later: bool = False
) -> list[SlurmJob]:
    """Pending jobs that may take GPUs of a planned node past the gate.

    That is now or within `_SOON_S`, also when its user ends others. One of a managed partition
    that needs a part of a node counts although it is held or waits for another job: its user lets
    it go in the moment in which a node is not guarded. ``later``: at any time, as users change what
    such a job waits for, or its nodes: each counts although it is held, or waits for a time,
    another job or room, or asks for other nodes. Not one that passes only as no node has its GPUs,
    which no update can change.
    """
    there = _with_gpus(context)
    whole = {name for name in there if context.partitions[name].exclusive}
    jobs = [*jobs]
    ours = {job.raw_id for job in jobs if is_ours(job.admin_comment)}
    components = components_of(jobs)
    found = [
        job
        for job in jobs
        if job.state == "PENDING"
        if job.follows not in ours  # later components start with the first
        if not there.isdisjoint(job.partitions)
        if passes_gate(job, whole, components.get(job.raw_id, ()))
    ]
    cluster, running = context.cluster, context.cluster.running
    if later:
        empty = Timeline(running, context.now).at(cluster, math.inf)
        fixed = {job.raw_id for job in found if _is_fixed(job, components)}
        asked = (_anywhere(job) for job in found if job.raw_id in fixed)
        may = _able(_with_nodes(asked, context), context, lambda _: empty)
        able = {job.raw_id for job in may}
        return [job for job in found if job.raw_id in able or job.raw_id not in fixed]
    soon_s = context.now + _SOON_S
    managed = {*(context.config.site.partitions or there)}
    due = (
        one
        for one in found
        if (one.priority and not one.dependency)
        or not (_whole(one) or managed.isdisjoint(one.partitions))
        if (one.eligible_s or 0.0) <= soon_s
    )

    @cache
    def room(user: str) -> Cluster:  # without what the user may end now, or ends soon
        gone = [one for one in running if one.user == user or one.end_s <= soon_s]
        return Timeline(gone, context.now).at(cluster, math.inf)

    return _able(_with_nodes(due, context), context, room)


def _is_fixed(job: SlurmJob, components: Mapping[int, Sequence[SlurmJob]]) -> bool:
    """Whether no update changes the GPUs for which a job asks: only then it would wait at the gate.

    One of licences with ``|``, which Slurm lists like others, never does.
    """
    return not (_whole(job) or len(job.licenses) > 1 or components.get(job.raw_id))


def _anywhere(job: SlurmJob) -> SlurmJob:
    """The job without what it says of its nodes."""
    return replace(job, req_nodes=(), exc_nodes=(), features=None)


def _able(
    jobs: Iterable[SlurmJob], context: AdmissionContext, room: Callable[[str], Cluster]
) -> list[SlurmJob]:
    """Those that Slurm might start on a cluster that is as free as it is for their user."""
    others, answers, able = Outside(context), dict[object, bool](), list[SlurmJob]()
    for job in jobs:
        if (like := _asked(job)) not in answers:
            if len(answers) == _MOST_OUTSIDE:
                able.append(job)
                continue
            answers[like] = _may_take(job, others, room(job.user))
        if answers[like]:
            able.append(job)
    return able


_OWN = {
    *("id", "raw_id", "name", "reason", "priority", "submit_s", "eligible_s", "start_s"),
    *("accrue_s", "tried_at_s", "comment", "submitted_with", "array_id", "array_tasks"),
    *("time_limit_s", "time_min_s", "deadline_s", "account", "qos", "licenses", "extra"),
    "req_tres",  # it cannot be hashed
}
_ASKED = attrgetter(*(one.name for one in fields(SlurmJob) if one.name not in _OWN))


def _asked(job: SlurmJob) -> object:
    """What a job asks for, and who: of thousands of equal ones one is looked at."""
    return _ASKED(job), tuple(sorted(job.req_tres.items()))


def _with_nodes(jobs: Iterable[SlurmJob], context: AdmissionContext) -> list[SlurmJob]:
    """Those whose nodes and GPUs are there: no number of others may hide one that is."""
    nodes, there = context.nodes, frozenset(context.cluster.nodes)
    on_node = np.count_nonzero(context.cluster.exists, axis=1)
    most, every = int(on_node.max(initial=0)), int(on_node.sum())
    most_cpus = max((nodes[name].cpus for name in there), default=0)
    usable = {name for name, node in nodes.items() if is_usable(node)}
    types = {kind for name in there for kind, _ in nodes[name].gpus}
    return [
        job
        for job in jobs
        if len(job.req_nodes) < job.min_nodes or not there.isdisjoint(job.req_nodes)
        if usable.issuperset(job.req_nodes) and types.issuperset(gpu_types(job))
        if (part := part_of(job)).gpus <= every and (part.per_node or 0) <= most
        if not part.gpus or job.least_cpus <= most_cpus
    ]


def _may_take(job: SlurmJob, others: Outside, cluster: Cluster) -> bool:
    """Whether Slurm might start it on a node of the round that is as free as in ``cluster``."""
    nodes = others.context.nodes
    if not can_start(job, [nodes[name] for name in cluster.nodes]):
        return False
    if others.others(job):
        return True
    return LeftPolicy().place(others.request(job), cluster) is not None


def need_a_part(passing: Iterable[SlurmJob]) -> bool:
    """Whether some of these may get GPUs beside those of another job on its node."""
    return not all(_whole(job) for job in passing)


def highest(passing: Iterable[SlurmJob], context: AdmissionContext) -> float:
    """Highest priority of those that need a part of a node only and are not held; -inf: none is."""
    parts = [job for job in passing if job.priority and not _whole(job)]
    found = (standing_of(job, context.partitions) for job in parts)
    return max(found, default=-math.inf)


def _with_gpus(context: AdmissionContext) -> frozenset[str]:
    """Partitions that have nodes of a round."""
    names = frozenset(context.cluster.nodes)
    parts = context.partitions.items()
    return frozenset(name for name, one in parts if not names.isdisjoint(one.nodes))


def _whole(job: SlurmJob) -> bool:
    """Whether it gets GPUs with whole nodes only."""
    return not _asks_gpus(job) or (job.exclusive and not job.exclusive_by)


def _is_in(phase: JobPhase, job: SlurmJob) -> bool:
    marker = marker_of(job.admin_comment)
    return marker is not None and marker.phase is phase


def _is_left_bare(job: SlurmJob) -> bool:
    """Whether it is a component without GPUs of a job that is left to Slurm."""
    return job.het and not _asks_gpus(job) and _is_in(JobPhase.LEFT, job)


def outside(jobs: Iterable[SlurmJob], context: AdmissionContext) -> Iterator[Request]:
    """Pending jobs that wait at no gate, but for room on nodes of a round only.

    The first `_MOST_OUTSIDE` by priority, as Slurm itself tries so many (bf_max_job_test).
    """
    there = _with_gpus(context)
    found = [
        job
        for job in jobs
        if job.state == "PENDING" and job.priority and job.reason.startswith(_FOR_ROOM)
        if not (job.dependency or (is_ours(job.admin_comment) and not _is_left_bare(job)))
        if (job.eligible_s or 0.0) <= context.now and not there.isdisjoint(job.partitions)
    ]
    found.sort(key=lambda job: -standing_of(job, context.partitions))
    yield from map(Outside(context).request, found[:_MOST_OUTSIDE])
