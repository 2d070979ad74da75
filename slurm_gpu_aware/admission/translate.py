"""Translation of a parked job to the planner's `Request`, or the reason why there is none."""

from dataclasses import dataclass, replace
from functools import lru_cache

from slurm_gpu_aware.admission import sizes
from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError, QueueEntry
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
from slurm_gpu_aware.config.settings import DEFAULT_KINDS, Config
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.classes.history import AskedClass, ClassHistory, GivenClass
from slurm_gpu_aware.features.due_dates.admission import dated
from slurm_gpu_aware.features.energy.declared import OWN_CLOCK
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.features.models.declared import NAMED_MODEL
from slurm_gpu_aware.features.models.performance_model import MODEL
from slurm_gpu_aware.features.moves.declared import HAD_GPUS, MOVE, MovesConfig
from slurm_gpu_aware.features.power.declared import FREQ
from slurm_gpu_aware.features.shards.admission import shard_request
from slurm_gpu_aware.features.sizes.declared import GPUS
from slurm_gpu_aware.features.sizes.moldable import cpus_of, moldable
from slurm_gpu_aware.filter_rules import SOCKETS_PER_NODE
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import Form, form_of
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.job_hints import (
    AUTO,
    BANDWIDTH,
    CLASS,
    HINTED,
    OFF,
    PATTERN,
    PLACE,
    JobHints,
    parse_comment,
)
from slurm_gpu_aware.model.request import Cpus, NodeRules, PolicyChoice, Request
from slurm_gpu_aware.slurm.gres import shards_of
from slurm_gpu_aware.slurm.records import GpuDefaults, SlurmJob
from slurm_gpu_aware.slurm.words import expand_hostlist, understood


@dataclass(frozen=True)
class _Asked:
    """Hints of a job with the site's defaults."""

    hints: JobHints  # No class is ``auto``.
    given: bool  # Whether the user named the class.
    auto: bool  # Whether ``class=auto`` comes before the class of ``hints``.


def _asked_of(job: SlurmJob, original: OriginalRequest | None, config: Config) -> _Asked:
    """Job hints: the comment's or the environment's, filled with the site's defaults."""
    defaults, names = config.site.defaults, {"partition": job.partitions}
    names |= {"user": (job.user,), "account": (job.account or "",), "qos": (job.qos or "",)}
    texts = (defaults.get(kind, {}).get(n) for kind in DEFAULT_KINDS for n in names[kind])
    own = job.comment, original.environment if original is not None else None
    classes, offered = tuple(config.site.classes), config.placement.offered
    return _asked(own, tuple(filter(None, texts)), classes, offered)


def _hints_of(job: SlurmJob, original: OriginalRequest | None, config: Config) -> JobHints:
    return _asked_of(job, original, config).hints


@lru_cache(maxsize=1 << 12)  # users write few different comments
def _asked(
    own: tuple[str | None, ...],
    defaults: tuple[str, ...],
    classes: tuple[str, ...],
    offered: tuple[str, ...],
) -> _Asked:
    """Hints of the first of ``own`` that has some; none if the site has changed since."""
    hints, lists = JobHints(), {"classes": classes, "policies": offered}
    for text in own:
        try:
            found = parse_comment(text, HINTS, lists)
        except RequestError:
            break
        if found is not None:
            hints = found
            break
    given, auto = hints.get(CLASS) not in (None, AUTO), hints.get(CLASS) == AUTO
    for text in defaults:
        hints = hints.filled(parse_comment(text, HINTS, lists) or JobHints())
        auto |= hints.get(CLASS) == AUTO
    return _Asked(hints.filled(JobHints()), given, auto)


def class_of(
    job: SlurmJob, original: OriginalRequest | None, config: Config, history: ClassHistory
) -> AskedClass:
    """Application class: the one that its hints name or that is known, else the site's default."""
    asked = _asked_of(job, original, config)
    default = asked.hints.get(CLASS) or config.site.default_class
    if not asked.auto:
        return AskedClass(default, "given" if asked.given else "site")
    turn = job.submit_s, job.array_id or job.raw_id
    known = history.of(job.user, job.name, job.account or "", turn)
    if known is None or known[1].app_class not in config.site.classes:
        return AskedClass(default, "nothing")
    return AskedClass(known[1].app_class, known[0], known[1])


def given_class(gated: GatedJob, config: Config) -> GivenClass | None:
    """The class that the user gave a job, for `ClassHistory`; None: none."""
    job = gated.job
    asked = _asked_of(job, gated.original, config)
    named = asked.hints.get(CLASS)
    if not asked.given or named is None:
        return None
    return GivenClass(job.user, named, job.submit_s, job.name, job.account or "", job.id)


def move_of(gated: GatedJob, config: Config) -> str | int | None:
    """What a job says about moves (`MOVE`); None: nothing, or it cannot be moved.

    Only a batch job can be requeued, and a task that comes back would stop the later tasks of its
    array until it is placed. A requeued job has its whole time limit again, and Slurm cancels it if
    that does not fit before its deadline.
    """
    return None if gated.job.deadline_s is not None else _move_asked(gated, config)


def _move_asked(gated: GatedJob, config: Config) -> str | int | None:
    original = gated.original
    if original.interactive or gated.job.het or gated.job.array_id is not None:
        return None
    if shards_of(original.tres_per_node):
        return None
    move = _hints_of(gated.job, gated.original, config).get(MOVE)
    return None if move == MOVE.none else move


def why_not_moved(gated: GatedJob, config: Config) -> str | None:
    """Why a job that allows moves stays where it is; None: it may move, or allows none."""
    if _move_asked(gated, config) is None:
        return None
    if gated.job.deadline_s is not None:
        return "it allows moves, but Slurm may cancel a requeued job that has a --deadline"
    off = "it allows moves, but moves are off on this site"
    return None if config.of(MovesConfig).enabled else off


def to_request(gated: GatedJob, context: AdmissionContext) -> Request:
    """Translate a parked job, or one task of its array (`GatedJob.task`).

    Raises CannotPlanError with the reason, and whether the job is left to Slurm.
    """
    form = _supported_form(gated)
    hints = _hints_of(gated.job, gated.original, context.config)
    if hints.get(PLACE) == OFF and context.config.placement.allow_off:
        raise CannotPlanError("place=off is the site's default for it")
    requests: list[Request] = []
    failed: list[CannotPlanError] = []
    partitions = open_partitions(gated.job, context)
    for partition in partitions:
        entry = QueueEntry(gated, form, partition, context)
        try:
            request = shard_request(_request(entry), entry)
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
    if form.kind != "task" and form.item.others:
        raise CannotPlanError("other GRES than GPUs are left to Slurm")
    return form


def _request(entry: QueueEntry) -> Request:
    """The request of the job in one of its partitions. Raises CannotPlanError."""
    job, original, partition, context = entry.job, entry.original, entry.partition, entry.context
    hints, before = _hints_of(job, original, context.config), context.known.moved.get(job.id)
    app_class = class_of(job, original, context.config, context.known.classes).app_class
    defaults = context.config.for_class(app_class)
    links, place = hints.get(BANDWIDTH), hints.get(PLACE)
    first_s = job.submit_s if before is None else before.submit_s
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
        clock=hints.get(FREQ),
        user=job.user,
        application=defaults.application,
        nodes=NodeRules(
            eligible,
            None if allowed is eligible else allowed,
            required,
            whole=entry.whole_node,
            alone=entry.alone,
        ),
        cpus=Cpus(cpus_of(entry) if original.cpus_per_tres is None else 1, per_gpu.cpus or 0),
        memory=sizes.memory_of(entry, per_gpu, allowed),
        time_limit_s=limit_s,
        facets={
            **named(MODEL, hints.get(NAMED_MODEL)),
            **named(HINTED, hints.carried(HINTS)),
            **named(OWN_CLOCK, bool(original.tres_freq)),
            **dated(hints, job, gpus, first_s),
            **named(HAD_GPUS, 0 if before is None else before.gpus),
        },
        **entry.standing(),
    )
    if (groups := required_groups(request, entry)) is not None:
        request = replace(request, nodes=replace(request.nodes, groups=groups))
    request = sizes.as_many_nodes(bind(_step_fits(request, entry, per_gpu), entry), entry)
    wanted = hints.get(GPUS)
    return request if wanted is None else moldable(request, entry, wanted, allowed)


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
