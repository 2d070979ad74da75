"""CPUs and memory per GPU of a job, as requested or by ``JobDefaults``."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.eligible import open_partitions
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.index_types import gpu_item
from slurm_gpu_aware.gate.request_forms import Form, cpus_of_a_task
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.records import GpuDefaults, SlurmConfig, SlurmJob, SlurmPartition

__all__ = ["check_default_cpus", "default_cpus", "least_with_gpus", "per_gpu_of"]


def per_gpu_of(original: OriginalRequest, cluster: GpuDefaults, own: GpuDefaults) -> GpuDefaults:
    """CPUs and memory per GPU: as requested, else of the partition, else of the cluster.

    Slurm applies the defaults whenever it tries the job; ``-c`` disables that of CPUs, ``--mem``
    and ``--mem-per-cpu`` that of memory.
    """
    cpus = own.cpus if own.cpus is not None else cluster.cpus
    memory_mb = own.memory_mb if own.memory_mb is not None else cluster.memory_mb
    asked, asked_mb = gpu_item(original.cpus_per_tres), gpu_item(original.mem_per_tres)
    if asked is not None or original.cpus_per_task is not None:
        cpus = asked.count if asked is not None else None
    if asked_mb is not None or original.memory:
        memory_mb = asked_mb.count if asked_mb is not None else None
    return GpuDefaults(cpus, memory_mb)


def least_with_gpus(
    job: SlurmJob,
    original: OriginalRequest,
    slurm: SlurmConfig,
    partitions: Mapping[str, SlurmPartition],
) -> tuple[int, int]:
    """CPUs and memory in MB per GPU of a job, each the most of its partitions."""
    own = [partitions[name].per_gpu for name in job.partitions if name in partitions]
    per_gpu = [per_gpu_of(original, slurm.per_gpu, defaults) for defaults in own]
    return (
        max((each.cpus or 0 for each in per_gpu), default=0),
        max((each.memory_mb or 0 for each in per_gpu), default=0),
    )


def default_cpus(job: SlurmJob, request: Request, context: AdmissionContext) -> int | None:
    """CPUs with each GPU, to be written as CPUs per task; None if no ``DefCpuPerGPU`` applies."""
    defaults = [context.slurm.per_gpu, *(p.per_gpu for p in open_partitions(job, context))]
    return (request.cpus_per_gpu or None) if any(d.cpus is not None for d in defaults) else None


def check_default_cpus(
    original: OriginalRequest, form: Form, per_gpu: int, request: Request
) -> None:
    """Leave a job to Slurm if DefCpuPerGPU applies and its tasks do not share the CPUs evenly.

    Raises CannotPlanError.
    """
    most = form.item.count if form.kind == "node" else request.gpus
    if most == 1 and original.cpus_per_tres is None:
        return  # one type of GPU on each node: Slurm's own default works
    for nodes in {request.min_nodes, request.max_nodes or request.min_nodes}:
        if cpus_of_a_task(original, per_gpu * request.gpus, nodes) is None:
            reason = "beside DefCpuPerGPU its tasks do not share the CPUs evenly"
            raise CannotPlanError(reason, leave=True)
