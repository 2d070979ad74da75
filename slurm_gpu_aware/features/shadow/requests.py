"""Requests of jobs without a record of ours, from what Slurm shows of them."""

from collections.abc import Mapping
from dataclasses import replace

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import form_of
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.records import SlurmJob

_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")


def as_gated(job: SlurmJob) -> GatedJob:
    """The job as if it had come through the filter, by its present options."""
    original = parse(job.admin_comment) or original_of(job)
    return GatedJob(job, original, None, JobPhase.WAITING)


def original_of(job: SlurmJob) -> OriginalRequest:
    """The request of a job in Slurm's words.

    Slurm shows one task and one CPU per task where the user gave none, so these count as not given.
    Its GPU type becomes the request's model.
    """
    texts = {name: getattr(job, name) for name in _FIELDS}
    form = form_of(OriginalRequest(**texts))
    nodes = (job.min_nodes, job.max_nodes)
    counted = job.tasks > 1 or (form is not None and form.kind == "task")
    return OriginalRequest(
        **texts,
        cpus_per_tres=job.cpus_per_tres,
        mem_per_tres=job.mem_per_tres,
        nodes=None if nodes == (1, None) else nodes,
        features=job.features,
        req_nodes=",".join(job.req_nodes) or None,
        exc_nodes=",".join(job.exc_nodes) or None,
        num_tasks=job.tasks if counted else None,
        cpus_per_task=job.cpus_per_task if (job.cpus_per_task or 1) > 1 else None,
        ntasks_per_node=job.ntasks_per_node,
        memory=job.memory_mb_per_node is not None or job.memory_mb_per_cpu is not None,
        model=None if form is None else form.item.kind,
        exclusive=job.exclusive,
    )


def as_asked(started: SlurmJob, waiting: SlurmJob | None) -> SlurmJob:
    """The record by which a job that runs is planned.

    ``waiting``: its record (or that of its array) before it started; None: it was not seen. Where
    its options fix the GPUs of each node, it has the number of nodes that Slurm gave it.
    """
    given = len(started.nodes) or 1
    if waiting is None:
        return replace(started, min_nodes=given, max_nodes=given)
    asked = replace(
        waiting,
        id=started.id,
        raw_id=started.raw_id,
        array_tasks=None,
        partitions=started.partitions,
        reservation=started.reservation,
    )
    form = form_of(original_of(asked))
    if form is not None and form.on_node is not None:
        asked = replace(asked, min_nodes=given, max_nodes=given)
    return asked


def request_of(gated: GatedJob, context: AdmissionContext) -> Request:
    """The request, of one size. Raises CannotPlanError."""
    return replace(to_request(gated, context), sizes=())


def on_only(request: Request, nodes: BoolArray) -> Request:
    """The request on those of its eligible nodes that are in an (N,) mask."""
    known = request.nodes.eligible
    eligible = nodes if known is None else known & nodes
    return replace(request, nodes=replace(request.nodes, eligible=eligible, allowed=None))


def asks_for_gpus(job: SlurmJob) -> bool:
    """Whether a job asks for whole GPUs."""
    return any("gpu" in (getattr(job, name) or "") for name in _FIELDS)


def records_by_id(jobs: Mapping[str, SlurmJob], job: SlurmJob) -> SlurmJob | None:
    """The record that a job had while it waited: its own, or that of its array."""
    found = jobs.get(job.id)
    return found if found is not None or job.array_id is None else jobs.get(str(job.array_id))
