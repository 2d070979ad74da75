"""A parked job into the planner's `Request`, or the reason why it cannot be planned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from slurm_gpu_aware.cluster import BoolArray, Cluster
from slurm_gpu_aware.config import Config
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.request import Request
from slurm_gpu_aware.slurm.admin_comment import OriginalRequest
from slurm_gpu_aware.slurm.comment import Wishes, parse_comment
from slurm_gpu_aware.slurm.features import matches, understood
from slurm_gpu_aware.slurm.gateway import (
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmReservation,
)
from slurm_gpu_aware.slurm.gres import gpu_item
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.preemption import PreemptionRules
from slurm_gpu_aware.slurm.rewrite import Form, form_of, tasks_of

__all__ = ["CannotPlanError", "Site", "class_of", "to_request", "wishes_of"]

_TIER = 2.0**32
"""Slurm serves partitions of a higher tier first, whatever the priority (which has 32 bits)."""


class CannotPlanError(Exception):
    """Why a job cannot be planned.

    ``leave`` : True: it never can, Slurm shall place it; False: not now.
    """

    def __init__(self, reason: str, *, leave: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.leave = leave


@dataclass(frozen=True)
class Site:
    """What a translation needs to know beside the job."""

    config: Config
    slurm: SlurmConfig
    nodes: Mapping[str, SlurmNode]
    partitions: Mapping[str, SlurmPartition]
    reservations: Sequence[SlurmReservation]
    cluster: Cluster
    now: float
    rules: PreemptionRules = field(default_factory=PreemptionRules)
    eligible: dict[object, BoolArray] = field(default_factory=dict)
    """Node masks of this round by what they follow from; jobs that share one share the array, by
    which the planner sees that they fit alike."""

    @cached_property
    def widest(self) -> int:
        """CPUs of the largest node."""
        return max((node.cpus for node in self.nodes.values()), default=0)


def wishes_of(job: SlurmJob, config: Config) -> Wishes:
    """The user's comment; one that is wrong by now (the site changed) counts as none."""
    try:
        found = parse_comment(job.comment, config.site.classes, config.placement.allowed)
    except RequestError:
        found = None
    return found if found is not None else Wishes()


def class_of(job: SlurmJob, wishes: Wishes, config: Config) -> str:
    """Application class: the comment's, else the partition's, else the site's default."""
    if wishes.app_class in config.site.classes:
        return str(wishes.app_class)
    for partition in job.partitions:
        if partition in config.site.partition_class:
            return config.site.partition_class[partition]
    return config.site.default_class


def to_request(
    job: SlurmJob, original: OriginalRequest, site: Site, *, job_id: str | None = None
) -> Request:
    """Translate a parked job (``job_id``: one task of its array).

    Raises
    ------
    CannotPlanError
        With the reason; ``leave`` says whether the gate should be opened for Slurm to place it.
    """
    form = form_of(original)
    if form is None:
        raise CannotPlanError("its form of request cannot be placed exactly", leave=True)
    if job.het:
        raise CannotPlanError("heterogeneous jobs are left to Slurm", leave=True)
    if not understood(original.features):
        raise CannotPlanError("its constraint is left to Slurm", leave=True)
    wishes = wishes_of(job, site.config)
    app_class = class_of(job, wishes, site.config)
    partition = _partition(job, site)
    limit_s = _time_limit(job, partition)
    eligible = _eligible(job, original, site, partition, limit_s)
    least, most = _node_bounds(job, original, partition, site)
    gpus, per_node, least, most = _size(original, form, least, most, eligible, site.cluster)
    per_gpu = gpu_item(original.cpus_per_tres)
    defaults = site.config.for_class(app_class)
    memory = _memory(job, original, eligible, site)
    request = Request(
        job_id=job_id or job.id,
        gpus=gpus,
        min_nodes=least,
        max_nodes=most,
        gpus_per_node=per_node,
        app_class=app_class,
        bandwidth_sensitive=(
            defaults.bandwidth_sensitive if wishes.bw is None else wishes.bw == "high"
        ),
        pattern=wishes.pattern or "ring",
        policy=wishes.place if wishes.place not in (None, "off") else None,
        clock=wishes.freq,
        performance_model=wishes.model,
        eligible=eligible,
        required=_required(original, site.cluster),
        whole_node=original.exclusive or job.exclusive or partition.exclusive,
        cpus=max(1, job.cpus),
        cpus_per_gpu=per_gpu.count if per_gpu is not None else 0,
        memory_mb_per_node=memory[0],
        memory_mb_per_cpu=memory[1],
        memory_mb_per_gpu=memory[2],
        time_limit_s=limit_s,
        priority=_TIER * partition.priority_tier + job.priority,
        submit_s=job.submit_s,
        preemption_tier=site.rules.tier(partition),
        preempts=site.rules.preempts(job),
    )
    if _needs_both_kinds(request, site.cluster):
        raise CannotPlanError(
            "it needs indexed and plain nodes together, which no typed request can name",
            leave=True,
        )
    return request


def _needs_both_kinds(request: Request, cluster: Cluster) -> bool:
    """Whether it fits on idle nodes only if some have a type per GPU and others do not."""
    indexed = cluster.indexed
    if request.whole_node or indexed.all() or not indexed.any():
        return False
    counts = cluster.exists.sum(axis=1)
    if request.eligible is not None:
        counts = np.where(request.eligible, counts, 0)
    together = False
    for nodes in request.node_counts(cluster.shape[1]):
        able = counts >= request.gpus // nodes
        kinds = [k for k in (indexed, ~indexed) if all(k[i] for i in request.required)]
        if any(int((able & k).sum()) >= nodes for k in kinds):
            return False
        together |= int(able.sum()) >= nodes
    return together


def _time_limit(job: SlurmJob, partition: SlurmPartition) -> float:
    limit = job.time_limit_s
    if math.isinf(limit):
        default = partition.default_time_s
        limit = default if default is not None else partition.max_time_s
    return limit


def _eligible(
    job: SlurmJob,
    original: OriginalRequest,
    site: Site,
    partition: SlurmPartition,
    limit_s: float,
) -> BoolArray:
    """(N,) nodes that partition, features, -x and reservations leave."""
    blocked = frozenset(_reserved(job, site, limit_s))
    key = (partition.name, original.exc_nodes, original.features, blocked)
    known = site.eligible.get(key)
    if known is not None:
        return known
    names = site.cluster.nodes
    excluded = set(expand_hostlist(original.exc_nodes)) if original.exc_nodes else set()
    allowed = np.zeros(len(names), dtype=np.bool_)
    for i, name in enumerate(names):
        node = site.nodes[name]
        allowed[i] = (
            name in partition.nodes
            and name not in excluded
            and name not in blocked
            and matches(original.features, node.features)
        )
    site.eligible[key] = allowed
    return allowed


def _partition(job: SlurmJob, site: Site) -> SlurmPartition:
    """The partition that the job is planned for.

    A job that may run in several partitions must have all its nodes in one: the first whose free
    GPUs suffice in number is taken, so that a job on several nodes never mixes two.
    """
    known = [site.partitions[p] for p in job.partitions if p in site.partitions]
    up = [p for p in known if p.up]
    if not up:
        raise CannotPlanError("its partition is not up", leave=False)
    open_now = [p for p in up if math.isinf(job.time_limit_s) or job.time_limit_s <= p.max_time_s]
    if not open_now:
        raise CannotPlanError("its time limit is longer than its partition allows", leave=False)
    if len(open_now) == 1:
        return open_now[0]
    ranked = sorted(open_now, key=lambda p: -p.priority_tier)
    free = site.cluster.free.sum(axis=1)
    wanted = max(1, job.req_tres.get("gres/gpu", 1))
    for partition in ranked:
        inside = [i for i, name in enumerate(site.cluster.nodes) if name in partition.nodes]
        if int(free[inside].sum()) >= wanted:
            return partition
    return ranked[0]


def _reserved(job: SlurmJob, site: Site, limit_s: float) -> set[str]:
    """Nodes that reservations keep from the job during its time limit."""
    blocked: set[str] = set()
    own: set[str] | None = None
    wanted = set((job.reservation or "").split(",")) - {""}
    for reservation in site.reservations:
        if reservation.name in wanted:
            own = (own or set()) | (set(reservation.nodes) if reservation.active else set())
        elif reservation.start_s < site.now + limit_s and reservation.end_s > site.now:
            blocked |= reservation.nodes
    if wanted:
        # Inside its own reservation other reservations do not matter, outside nothing is allowed.
        return set(site.cluster.nodes) - (own or set())
    return blocked


def _required(original: OriginalRequest, cluster: Cluster) -> tuple[int, ...]:
    if not original.req_nodes:
        return ()
    places = {name: i for i, name in enumerate(cluster.nodes)}
    names = expand_hostlist(original.req_nodes)
    missing = [name for name in names if name not in places]
    if missing:
        raise CannotPlanError(f"required node {missing[0]} has no GPUs", leave=True)
    return tuple(places[name] for name in names)


def _node_bounds(
    job: SlurmJob, original: OriginalRequest, partition: SlurmPartition, site: Site
) -> tuple[int, int | None]:
    """Fewest and most nodes: what was asked, what the tasks and CPUs need, what is allowed."""
    least, most = original.nodes or (1, None)
    if partition.max_nodes is not None and least <= partition.max_nodes:
        most = partition.max_nodes if most is None else min(most, partition.max_nodes)
    tasks = original.num_tasks
    if tasks is not None and original.ntasks_per_node:
        # On more nodes Slurm would count more tasks.
        least = most = max(least, -(-tasks // original.ntasks_per_node))
    widest = site.widest
    if site.slurm.counts_cpus and widest and original.cpus_per_tres is None:
        least = max(least, -(-job.cpus // widest))
    if tasks is not None and (most is None or most > tasks):
        most = max(least, tasks)
    return least, most


def _size(
    original: OriginalRequest,
    form: Form,
    least: int,
    most: int | None,
    eligible: BoolArray,
    cluster: Cluster,
) -> tuple[int, int | None, int, int | None]:
    """(GPUs in total, per node or None, fewest nodes, most nodes)."""
    count = form.item.count
    if form.kind == "node":
        nodes = _most_nodes(count, least, original.nodes, eligible, cluster)
        return count * nodes, count, nodes, nodes
    if form.kind == "job":
        return count, None, least, most
    tasks = tasks_of(original, least)
    if tasks is None:
        raise CannotPlanError("--gpus-per-task without a task count", leave=True)
    per_node = None
    if count > 1:
        width = cluster.shape[1]
        fits = [
            k for k in range(least, tasks + 1) if tasks % k == 0 and count * tasks // k <= width
        ]
        if not fits:
            raise CannotPlanError("its tasks cannot be spread evenly over nodes", leave=True)
        per_node = count * tasks // fits[0]
    return count * tasks, per_node, least, most


def _most_nodes(
    count: int,
    least: int,
    asked: tuple[int, int | None] | None,
    eligible: BoolArray,
    cluster: Cluster,
) -> int:
    """``--nodes=2-4``: as many as can start now, as Slurm does, but at least the fewest."""
    most = asked[1] if asked is not None else None
    if most is None or most <= least:
        return least
    ready = int((cluster.free.sum(axis=1)[eligible] >= count).sum())
    return max(least, min(most, ready))


def _memory(
    job: SlurmJob, original: OriginalRequest, eligible: BoolArray, site: Site
) -> tuple[int, int, int]:
    """(per node, per CPU, per GPU) MB; 0: not given this way."""
    if not site.slurm.counts_memory:
        return 0, 0, 0
    per_gpu = gpu_item(original.mem_per_tres)
    if per_gpu is not None:
        return 0, 0, per_gpu.count
    if job.memory_mb_per_cpu is not None:
        return 0, job.memory_mb_per_cpu, 0
    if job.memory_mb_per_node:
        return job.memory_mb_per_node, 0, 0
    # --mem=0: all memory of the node; only nodes where all of it is free will do.
    sizes = [
        site.nodes[name].memory_mb
        for i, name in enumerate(site.cluster.nodes)
        if eligible[i] and not site.nodes[name].memory_used_mb
    ]
    return min(sizes, default=1 << 40), 0, 0
