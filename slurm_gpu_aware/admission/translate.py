"""Translation of a parked job to the planner's `Request`, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.eligible import (
    allowed_nodes,
    check_not_shut_out,
    check_not_too_large,
    eligible_nodes,
    open_partitions,
)
from slurm_gpu_aware.admission.features import understood
from slurm_gpu_aware.admission.fitting import fits, fits_idle, needs_both_kinds
from slurm_gpu_aware.admission.node_groups import groups_of, most_in_one_group, required_groups
from slurm_gpu_aware.admission.per_gpu import check_default_cpus, default_cpus, per_gpu_of
from slurm_gpu_aware.admission.socket_binding import bind, check_binding, is_bound
from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import Form, form_of, tasks_of
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_hints import JobHints, parse_comment
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import GpuDefaults, SlurmJob, SlurmPartition

__all__ = ["class_of", "to_request"]

_TIER = 2.0**32
"""Weight of a partition's tier, which goes before the priority (of 32 bits)."""


def hints_of(job: SlurmJob, config: Config) -> JobHints:
    """Job hints of the comment; none if it is no longer valid because the site has changed."""
    return _hints(job.comment, tuple(config.site.classes), tuple(config.placement.allowed))


@lru_cache(maxsize=1 << 12)  # users write few different comments
def _hints(comment: str | None, classes: tuple[str, ...], allowed: tuple[str, ...]) -> JobHints:
    try:
        return parse_comment(comment, classes, allowed) or JobHints()
    except RequestError:
        return JobHints()


def class_of(job: SlurmJob, config: Config) -> str:
    """Application class: the comment's, else the partition's, else the site's default."""
    hints = hints_of(job, config)
    if hints.app_class in config.site.classes:
        return str(hints.app_class)
    for partition in job.partitions:
        if partition in config.site.partition_class:
            return config.site.partition_class[partition]
    return config.site.default_class


def to_request(gated: GatedJob, context: AdmissionContext) -> Request:
    """Translate a parked job, or one task of its array (`GatedJob.task`).

    Raises
    ------
    CannotPlanError
        With the reason, and whether the job is left to Slurm.
    """
    job, original = gated.job, gated.original
    form = form_of(original)
    if form is None:
        raise CannotPlanError("its form of request cannot be placed exactly", leave=True)
    if job.het:
        raise CannotPlanError("heterogeneous jobs are left to Slurm", leave=True)
    if not understood(original.features):
        raise CannotPlanError("its constraint is left to Slurm", leave=True)
    if job.unsupported:
        raise CannotPlanError(f"{job.unsupported[0]} is left to Slurm", leave=True)
    if form.kind != "task" and form.item.others:
        raise CannotPlanError("other GRES than GPUs are left to Slurm", leave=True)
    requests: list[Request] = []
    failed: list[CannotPlanError] = []
    partitions = open_partitions(job, context)
    for partition in partitions:
        try:
            request = _in_partition(gated, form, context, partition)
            _check(request, gated, form, context, partition)
        except CannotPlanError as exc:
            failed.append(exc)
            continue
        # All nodes of a job are in one partition: take the first where it can start now.
        if len(partitions) == 1 or fits(request, context.cluster, idle=False):
            return request
        requests.append(request)
    if requests:
        return next((r for r in requests if fits_idle(r, context)), requests[0])
    raise next((exc for exc in failed if not exc.leave), failed[0])


def _in_partition(
    gated: GatedJob, form: Form, context: AdmissionContext, partition: SlurmPartition
) -> Request:
    """The request of the job in one of its partitions. Raises CannotPlanError."""
    job, original = gated.job, gated.original
    hints = hints_of(job, context.config)
    app_class = class_of(job, context.config)
    limit_s = _time_limit(job, partition)
    per_gpu = per_gpu_of(original, context.slurm.per_gpu, partition.per_gpu)
    allowed = allowed_nodes(original, context, partition)
    eligible = eligible_nodes(job, original, context, partition, limit_s)
    required = _required(original, context.cluster)
    _check_size(job, original, form, allowed, context, per_gpu)
    _check_threads(job, allowed, context)
    check_not_shut_out(job, eligible, allowed, required, context)
    least, most = _node_bounds(job, original, partition, eligible, context)
    groups = groups_of(partition, context)
    gpus, per_node, least, most = _size(
        original, form, least, most, eligible, context.cluster, groups, required
    )
    if gpus > MAX_GPUS:
        raise CannotPlanError(f"it asks for more than {MAX_GPUS} GPUs", leave=True)
    defaults = context.config.for_class(app_class)
    memory = _memory(job, per_gpu, eligible, context)
    request = Request(
        job_id=job.id,
        gpus=gpus,
        min_nodes=least,
        max_nodes=most,
        gpus_per_node=per_node,
        app_class=app_class,
        bandwidth_sensitive=(
            defaults.bandwidth_sensitive if hints.bw is None else hints.bw == "high"
        ),
        pattern=hints.pattern or "ring",
        policy=hints.place if hints.place not in (None, "off") else None,
        clock=hints.freq,
        performance_model=hints.model,
        application=defaults.application,
        eligible=eligible,
        required=required,
        whole_node=original.exclusive or job.exclusive or partition.exclusive,
        cpus=max(1, job.cpus) if original.cpus_per_tres is None else 1,
        cpus_per_gpu=per_gpu.cpus or 0,
        memory_mb_per_node=memory[0],
        memory_mb_per_cpu=memory[1],
        memory_mb_per_gpu=memory[2],
        time_limit_s=limit_s,
        priority=_TIER * partition.priority_tier + job.priority,
        submit_s=job.submit_s,
        preemption_tier=context.rules.tier(partition),
        preempts=context.rules.preempts(job),
        preempts_lower=context.rules.preempts_lower(job),
        preempting_priority=float(job.priority),
    )
    asked = original.nodes if form.kind == "node" else None
    if (node_groups := required_groups(request, asked, partition, context)) is not None:
        request = replace(request, node_groups=node_groups)
    return bind(request, original, form) if is_bound(job, context.slurm) else request


def _check(
    request: Request,
    gated: GatedJob,
    form: Form,
    context: AdmissionContext,
    partition: SlurmPartition,
) -> None:
    """Check that the request can be written to Slurm and fits. Raises CannotPlanError."""
    job, original = gated.job, gated.original
    if is_bound(job, context.slurm):
        check_binding(request, context)
    if needs_both_kinds(request, context.cluster):
        raise CannotPlanError(
            "it needs indexed and plain nodes together, which no typed request can name",
            leave=True,
        )
    check_not_too_large(request, original, context, partition)
    _check_time_min(job, original, context, partition, request)
    if (cpus := default_cpus(job, request, context)) is not None:
        check_default_cpus(original, form, cpus, request)


def _check_threads(job: SlurmJob, allowed: BoolArray, context: AdmissionContext) -> None:
    """Leave a job to Slurm if its thread options matter on its nodes. Raises CannotPlanError."""
    if job.threads_per_core is None and job.tasks_per_core is None:
        return
    threads = {
        context.nodes[name].threads for i, name in enumerate(context.cluster.nodes) if allowed[i]
    }
    if job.threads_per_core is not None and threads - {job.threads_per_core}:
        raise CannotPlanError("--threads-per-core is left to Slurm on its nodes", leave=True)
    if job.tasks_per_core is not None and threads - {1}:
        raise CannotPlanError("--ntasks-per-core is left to Slurm on its nodes", leave=True)


def _check_time_min(
    job: SlurmJob,
    original: OriginalRequest,
    context: AdmissionContext,
    partition: SlurmPartition,
    request: Request,
) -> None:
    """Leave a job to Slurm's backfill if only a shorter limit lets it start before a reservation.

    The main scheduler, which starts placed jobs, never shortens. Raises CannotPlanError.
    """
    if job.time_min_s is None or job.time_min_s >= request.time_limit_s:
        return
    longer = eligible_nodes(job, original, context, partition, job.time_min_s)
    if longer is request.eligible:
        return
    shortened = replace(request, eligible=longer)
    for idle in (False, True):
        if fits(shortened, context.cluster, idle=idle) and not fits(
            request, context.cluster, idle=idle
        ):
            raise CannotPlanError(
                "before a reservation only backfill can start it, shortened by --time-min",
                leave=True,
            )


def _time_limit(job: SlurmJob, partition: SlurmPartition) -> float:
    limit = job.time_limit_s
    if math.isinf(limit):
        default = partition.default_time_s
        limit = default if default is not None else partition.max_time_s
    return limit


def _required(original: OriginalRequest, cluster: Cluster) -> tuple[int, ...]:
    if not original.req_nodes:
        return ()
    places = {name: i for i, name in enumerate(cluster.nodes)}
    names = expand_hostlist(original.req_nodes)
    missing = [name for name in names if name not in places]
    if missing:
        raise CannotPlanError(f"required node {missing[0]} has no GPUs to choose from", leave=True)
    return tuple(places[name] for name in names)


def _node_bounds(
    job: SlurmJob,
    original: OriginalRequest,
    partition: SlurmPartition,
    eligible: BoolArray,
    context: AdmissionContext,
) -> tuple[int, int | None]:
    """Fewest and most nodes, from request, tasks, CPUs and partition; most None: no bound."""
    least, most = original.nodes or (1, None)
    if partition.max_nodes is not None and least <= partition.max_nodes:
        most = partition.max_nodes if most is None else min(most, partition.max_nodes)
    tasks = original.num_tasks
    if tasks is not None and original.ntasks_per_node:
        # On more nodes Slurm would count more tasks.
        least = most = max(least, -(-tasks // original.ntasks_per_node))
    # Nodes that are down count only if all are.
    widest = _largest(context.cpus, eligible & context.usable) or _largest(context.cpus, eligible)
    if context.slurm.counts_cpus and widest and original.cpus_per_tres is None:
        least = max(least, -(-job.cpus // widest))
    if tasks is not None and (most is None or most > tasks):
        most = max(least, tasks)
    return least, most


def _check_size(
    job: SlurmJob,
    original: OriginalRequest,
    form: Form,
    allowed: BoolArray,
    context: AdmissionContext,
    per_gpu: GpuDefaults,
) -> None:
    """Leave a job to Slurm if no node of the partition can hold it, so that Slurm says so.

    Raises CannotPlanError.
    """
    gpus = form.item.count if form.kind != "job" else 1
    one_task = original.cpus_per_task or 1
    cpus = max(one_task * (original.ntasks_per_node or 1), job.min_cpus_node)
    if per_gpu.cpus is not None:
        least = cpus if original.cpus_per_tres is None else 0
        cpus = max(least, per_gpu.cpus * gpus)
    memory = max(job.memory_mb_per_node or 0, (job.memory_mb_per_cpu or 0) * one_task)
    if per_gpu.memory_mb is not None:
        memory = per_gpu.memory_mb * gpus
    for counted, needed, has, name in (
        (context.slurm.counts_cpus, cpus, context.cpus, "CPUs"),
        (context.slurm.counts_memory, memory, context.memory_mb, "memory"),
    ):
        if counted and 0 < _largest(has, allowed) < needed:
            raise CannotPlanError(f"it asks for more {name} than a node has", leave=True)


def _largest(values: IntArray, nodes: BoolArray) -> int:
    return int(values[nodes].max(initial=0))


def _size(
    original: OriginalRequest,
    form: Form,
    least: int,
    most: int | None,
    eligible: BoolArray,
    cluster: Cluster,
    groups: NodeGroups | None,
    required: Sequence[int],
) -> tuple[int, int | None, int, int | None]:
    """(GPUs in total, per node or None, fewest nodes, most nodes)."""
    count = form.item.count
    if form.kind == "node":
        ready = eligible & (cluster.free.sum(axis=1) >= count)
        nodes = _most_nodes(least, original.nodes, most_in_one_group(ready, groups, required))
        return count * nodes, count, nodes, nodes
    if form.kind == "job":
        return count, None, least, most
    tasks = tasks_of(original, least)
    if tasks is None:
        raise CannotPlanError("--gpus-per-task without a task count", leave=True)
    per_node = None
    if count > 1:
        most_tasks = min(cluster.shape[1] // count, tasks)
        on_each = [k for k in range(1, most_tasks + 1) if tasks % k == 0 and tasks // k >= least]
        if not on_each:
            raise CannotPlanError("its tasks cannot be spread evenly over nodes", leave=True)
        per_node = count * on_each[-1]
    return count * tasks, per_node, least, most


def _most_nodes(least: int, asked: tuple[int, int | None] | None, ready: int) -> int:
    """Nodes of ``--nodes=2-4``: as many as can start now, as in Slurm, but at least the fewest."""
    most = asked[1] if asked is not None else None
    if most is None or most <= least:
        return least
    return max(least, min(most, ready))


def _memory(
    job: SlurmJob, per_gpu: GpuDefaults, eligible: BoolArray, context: AdmissionContext
) -> tuple[int, int, int]:
    """(per node, per CPU, per GPU) MB; 0: not given this way."""
    if not context.slurm.counts_memory:
        return 0, 0, 0
    if per_gpu.memory_mb is not None:
        return 0, 0, per_gpu.memory_mb
    if job.memory_mb_per_cpu is not None:
        return 0, job.memory_mb_per_cpu, 0
    if job.memory_mb_per_node:
        return job.memory_mb_per_node, 0, 0
    # --mem=0: all memory of a node, so only nodes where all of it is free count.
    sizes = [
        context.nodes[name].memory_mb
        for i, name in enumerate(context.cluster.nodes)
        if eligible[i] and not context.nodes[name].memory_used_mb
    ]
    return min(sizes, default=1 << 40), 0, 0
