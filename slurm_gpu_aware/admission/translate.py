"""Translation of a parked job to the planner's `Request`, or the reason why there is none."""

from dataclasses import replace

from slurm_gpu_aware.admission import sizes
from slurm_gpu_aware.admission.context import (
    AdmissionContext,
    CannotPlanError,
    Part,
    QueueEntry,
)
from slurm_gpu_aware.admission.fitting import (
    allowed_nodes,
    bind,
    check_not_shut_out,
    check_sockets,
    eligible_nodes,
    fits,
    fits_idle,
    leave_if_shared,
    needs_both_kinds,
    open_partitions,
    required_groups,
)
from slurm_gpu_aware.admission.hints import class_of, hints_of
from slurm_gpu_aware.features import folders, found
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.filter_rules import SOCKETS_PER_NODE
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import Form, form_of
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.job_hints import BANDWIDTH, HINTED, OFF, PATTERN, PLACE
from slurm_gpu_aware.model.request import Cpus, NodeRules, PolicyChoice, Request
from slurm_gpu_aware.slurm.records import GpuDefaults
from slurm_gpu_aware.slurm.words import expand_hostlist, understood

ASKED: tuple[Part, ...] = tuple(found("admission", "ASKED"))
"""Parts of features in a request: what the job says to them."""
FITTED: tuple[Part, ...] = tuple(found("admission", "FITTED"))
"""The same for what rests on its nodes."""


def to_request(gated: GatedJob, context: AdmissionContext) -> Request:
    """Translate a parked job, or one task of its array (`GatedJob.task`).

    Raises CannotPlanError with the reason, and whether the job is left to Slurm.
    """
    form = _supported_form(gated)
    hints = hints_of(gated.job, gated.original, context.config)
    if hints.get(PLACE) == OFF and context.config.placement.allow_off:
        raise CannotPlanError("place=off is the site's default for it")
    requests: list[Request] = []
    failed: list[CannotPlanError] = []
    partitions = open_partitions(gated.job, context)
    for partition in partitions:
        entry = QueueEntry(gated, form, partition, context)
        try:
            request = _request(entry)
            _check(request, entry)
        except CannotPlanError as exc:
            failed.append(exc)
            continue
        # All nodes of a job are in one partition: take the first where it can start now.
        if len(partitions) == 1 or fits(request, context.cluster):
            return request
        requests.append(request)
    if requests:
        return next((r for r in requests if fits_idle(r, context)), requests[0])
    raise next((exc for exc in failed if not exc.leave), failed[0])


def _supported_form(gated: GatedJob) -> Form:
    """The job's form of request. Raises CannotPlanError if the job is unsupported."""
    job, form = gated.job, form_of(gated.original)
    if form is None:
        raise CannotPlanError("its form of request cannot be placed exactly")
    if job.het:
        raise CannotPlanError("heterogeneous jobs are left to Slurm")
    if not understood(gated.original.features):
        raise CannotPlanError("its constraint is left to Slurm")
    for option in job.unsupported:
        if form.kind != "socket" or option != SOCKETS_PER_NODE:
            raise CannotPlanError(f"{option} is left to Slurm")
    if form.shards and "shards" not in folders():
        raise CannotPlanError("shards are left to Slurm")
    if form.kind != "task" and form.item.others:
        raise CannotPlanError("other GRES than GPUs are left to Slurm")
    return form


def _request(entry: QueueEntry) -> Request:
    """The request of the job in one of its partitions. Raises CannotPlanError."""
    job, original, partition, context = entry.job, entry.original, entry.partition, entry.context
    hints = hints_of(job, original, context.config)
    app_class = class_of(job, original, context.config, context.known.classes).app_class
    defaults = context.config.for_class(app_class)
    links, place = hints.get(BANDWIDTH), hints.get(PLACE)
    limit_s = entry.limit_s
    per_gpu = sizes.per_gpu_of(original, context.slurm.per_gpu, partition.per_gpu)
    allowed, eligible = allowed_nodes(entry), eligible_nodes(entry, limit_s)
    required = _required(entry)
    sizes.check_node_size(entry, allowed, per_gpu)
    _check_threads(entry, allowed)
    check_not_shut_out(entry, eligible, allowed, required)
    gpus, per_node, least, most = sizes.gpus_and_nodes(entry, eligible, required)
    if most is not None and len(required) > most:  # Slurm drops some of them
        raise CannotPlanError("its node list names more nodes than it may have")
    request = Request(
        job_id=job.id,
        gpus=gpus,
        min_nodes=least,
        max_nodes=most,
        gpus_per_node=per_node,
        app_class=app_class,
        bandwidth_sensitive=(defaults.bandwidth_sensitive if links is None else links == "high"),
        pattern=hints.get(PATTERN) or "ring",
        policy=PolicyChoice(None if place == OFF else place),
        user=job.user,
        application=defaults.application,
        nodes=NodeRules(
            eligible,
            None if allowed is eligible else allowed,
            required,
            whole=entry.whole_node,
            alone=entry.alone,
            sharing=entry.sharing,
        ),
        cpus=Cpus(sizes.cpus_of(entry) if original.cpus_per_tres is None else 1, per_gpu.cpus or 0),
        memory=sizes.memory_of(entry, per_gpu, allowed),
        time_limit_s=limit_s,
        facets=named(HINTED, hints.carried(HINTS)),
        **entry.standing(),
    )
    for part in ASKED:
        request = part(request, entry, hints)
    if (groups := required_groups(request, entry)) is not None:
        request = replace(request, nodes=replace(request.nodes, groups=groups))
    request = sizes.as_many_nodes(bind(_step_fits(request, entry, per_gpu), entry), entry)
    for part in FITTED:
        request = part(request, entry, hints)
    return request


def _step_fits(request: Request, entry: QueueEntry, per_gpu: GpuDefaults) -> Request:
    """The request on one node, if steps could not run on several. Raises CannotPlanError.

    Those of a direct ``srun`` and those in ``salloc`` need the GPUs in different fields there, and
    the step of a direct ``srun`` with CPUs per GPU asks for more CPUs than the bound job has.
    """
    original, cpus, program = entry.original, per_gpu.cpus, entry.job.submitted_with
    if original.ntasks_per_tres is not None and original.cpus_per_tres is None:
        cpus = None  # the CPUs of its tasks
    if not original.interactive or request.max_nodes == 1 or program == "salloc":
        return request
    if program == "srun" and cpus is None:
        return request
    if request.min_nodes > 1 or request.gpus > entry.context.cluster.shape[1]:
        why = "with CPUs per GPU" if program == "srun" else "(or salloc, Slurm does not say which)"
        raise CannotPlanError(f"a direct srun on several nodes {why} is left to Slurm")
    return replace(request, max_nodes=1)


def _required(entry: QueueEntry) -> tuple[int, ...]:
    """Positions of the nodes of ``-w``. Raises CannotPlanError."""
    if not entry.original.req_nodes:
        return ()
    places = {name: i for i, name in enumerate(entry.context.cluster.nodes)}
    names = expand_hostlist(entry.original.req_nodes)
    missing = [name for name in names if name not in places]
    if missing:
        raise CannotPlanError(f"required node {missing[0]} has no GPUs to choose from")
    return tuple(places[name] for name in names)


def _check_threads(entry: QueueEntry, allowed: BoolArray) -> None:
    """Leave a job to Slurm if its thread options matter on its nodes. Raises CannotPlanError."""
    per_core, tasks = entry.job.threads_per_core, entry.job.tasks_per_core
    if per_core is None and tasks is None:
        return
    threads = {node.threads for node in entry.context.chosen(allowed)}
    if per_core is not None and threads - {per_core}:
        raise CannotPlanError("--threads-per-core is left to Slurm on its nodes")
    if tasks is not None and threads - {1}:
        raise CannotPlanError("--ntasks-per-core is left to Slurm on its nodes")


def _check(request: Request, entry: QueueEntry) -> None:
    """Check that the request can be written to Slurm and fits. Raises CannotPlanError."""
    context = entry.context
    check_sockets(request, context)
    # Also of nodes that are down: it would wait for them, and fit no more than now.
    later = request.unreserved, context.repaired
    if needs_both_kinds(request, context.cluster) or needs_both_kinds(*later):
        raise CannotPlanError(
            "it needs indexed and plain nodes together, which no typed request can name"
        )
    if not fits_idle(request, context):  # it may fit shared GPUs
        leave_if_shared(entry)
    _check_time_min(request, entry)
    sizes.check_default_cpus(request, entry)


def _check_time_min(request: Request, entry: QueueEntry) -> None:
    """Leave a job to backfill if it must be shortened to start before a reservation."""
    shortest_s = entry.job.time_min_s
    if shortest_s is None or shortest_s >= request.time_limit_s:
        return
    longer = eligible_nodes(entry, shortest_s)
    if longer is request.nodes.eligible:
        return
    shortened = request.on_nodes(longer)
    if any(
        fits(shortened, where) and not fits(request, where)
        for where in (entry.context.cluster, entry.context.empty)
    ):
        raise CannotPlanError(
            "before a reservation only backfill can start it, shortened by --time-min"
        )
