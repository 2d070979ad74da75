"""Size of a request: GPUs, nodes, CPUs and memory, as requested or by ``JobDefaults``."""

from collections.abc import Mapping
from dataclasses import replace

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError, QueueEntry
from slurm_gpu_aware.admission.fitting import (
    allowed_nodes,
    fits,
    most_in_one_group,
    open_partitions,
)
from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.request_forms import cpus_of_a_task, tasks_of
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.request import Memory, Request
from slurm_gpu_aware.slurm.gres import gpu_item, shards_of
from slurm_gpu_aware.slurm.records import GpuDefaults, SlurmConfig, SlurmJob, SlurmPartition

_MOST_COUNTS = 64  # numbers of nodes that are tried for one job


def gpus_and_nodes(
    entry: QueueEntry, eligible: BoolArray, required: tuple[int, ...]
) -> tuple[int, int | None, int, int | None]:
    """(GPUs in total, per node or None, fewest nodes, most nodes). Raises CannotPlanError."""
    original, form, cluster = entry.original, entry.form, entry.context.cluster
    least, most = node_bounds(entry, eligible)
    gpus, per_node = form.item.count, None
    if form.on_node is not None:
        gpus = form.on_node
        most_asked = original.nodes[1] if original.nodes is not None else None
        if most_asked is not None and most_asked > least:
            # --nodes=2-4: as many as can start now, as in Slurm, but at least the fewest.
            ready = eligible & (cluster.free.sum(axis=1) >= gpus)
            if cluster.users is not None:
                user, users = entry.job.user, cluster.users
                ready = ready & users.open_for(user, alone=entry.alone, sharing=entry.sharing)
            least = max(least, min(most_asked, most_in_one_group(ready, required, entry)))
        gpus, per_node, most = gpus * least, gpus, least
    elif form.kind == "task":
        tasks = tasks_of(original, least)
        if tasks is None:
            raise CannotPlanError("--gpus-per-task without a task count")
        if gpus > 1:
            most_tasks = min(cluster.shape[1] // gpus, tasks)
            fit = (k for k in range(most_tasks, 0, -1) if tasks % k == 0 and tasks // k >= least)
            on_each = next(fit, None)
            if on_each is None:
                raise CannotPlanError("its tasks cannot be spread evenly over nodes")
            per_node = gpus * on_each
        gpus *= tasks
    if gpus > MAX_GPUS:
        raise CannotPlanError(f"it asks for more than {MAX_GPUS} GPUs")
    return gpus, per_node, least, most


def as_many_nodes(request: Request, entry: QueueEntry) -> Request:
    """A job with ``--nodes=2-4`` on as many nodes as can start now, as in Slurm, else the fewest.

    `gpus_and_nodes` has counted the nodes with free GPUs; here CPUs, memory and the rest count.
    """
    most_asked = (entry.original.nodes or (1, None))[1]
    if entry.form.on_node is None or most_asked is None or request.nodes.eligible is None:
        return request
    least, _ = node_bounds(entry, request.nodes.eligible)
    each, most = request.gpus // request.min_nodes, min(request.min_nodes, most_asked)
    for nodes in range(most, max(least, most - _MOST_COUNTS), -1):
        wide = replace(request, gpus=each * nodes, min_nodes=nodes, max_nodes=nodes)
        if fits(wide, entry.context.cluster):
            return wide
    if request.min_nodes <= least:
        return request
    return replace(request, gpus=each * least, min_nodes=least, max_nodes=least)


def node_bounds(entry: QueueEntry, eligible: BoolArray) -> tuple[int, int | None]:
    """Fewest and most nodes, from request, tasks, CPUs and partition; most None: no bound."""
    original, context, upper = entry.original, entry.context, entry.partition.max_nodes
    least, most = original.nodes or (1, None)
    if upper is not None and least <= upper:
        most = upper if most is None else min(most, upper)
    tasks = original.num_tasks
    if tasks is not None and original.ntasks_per_node:
        # On more nodes Slurm would count more tasks.
        least = most = max(least, -(-tasks // original.ntasks_per_node))
    # Nodes that are down or reserved count only if the others are too small for one task.
    widest = _largest(context.cpus, eligible & context.usable)
    if widest < max(original.cpus_per_task or 1, entry.job.min_cpus_node):
        widest = _largest(context.cpus, allowed_nodes(entry))
    if context.slurm.counts_cpus and widest and original.cpus_per_tres is None:
        least = max(least, -(-entry.job.cpus // widest))
    if tasks is not None and (most is None or most > tasks):
        most = max(least, tasks)
    return least, most


def _largest(values: IntArray, nodes: BoolArray) -> int:
    return int(values[nodes].max(initial=0))


def check_node_size(entry: QueueEntry, allowed: BoolArray, per_gpu: GpuDefaults) -> None:
    """Leave a job to Slurm, which says so, if no node can hold it. Raises CannotPlanError."""
    job, original, context = entry.job, entry.original, entry.context
    gpus = entry.form.on_node or (entry.form.item.count if entry.form.kind == "task" else 1)
    one_task = original.cpus_per_task or 1
    cpus = max(one_task * (original.ntasks_per_node or 1), job.min_cpus_node)
    if per_gpu.cpus is not None:
        cpus = max(cpus if original.cpus_per_tres is None else 0, per_gpu.cpus * gpus)
    memory = max(job.memory_mb_per_node or 0, (job.memory_mb_per_cpu or 0) * one_task)
    if per_gpu.memory_mb is not None:
        memory = per_gpu.memory_mb * gpus
    for counted, needed, has, name in (
        (context.slurm.counts_cpus, cpus, context.cpus, "CPUs"),
        (context.slurm.counts_memory, memory, context.memory_mb, "memory"),
    ):
        if counted and 0 < _largest(has, allowed) < needed:
            raise CannotPlanError(f"it asks for more {name} than a node has")


def memory_of(entry: QueueEntry, per_gpu: GpuDefaults, allowed: BoolArray) -> Memory:
    """The memory that the job asks for."""
    job, context = entry.job, entry.context
    if not context.slurm.counts_memory:
        return Memory()
    if per_gpu.memory_mb is not None:
        return Memory(per_gpu_mb=per_gpu.memory_mb)
    if job.memory_mb_per_cpu is not None:
        return Memory(per_cpu_mb=job.memory_mb_per_cpu)
    if job.memory_mb_per_node:
        return Memory(per_node_mb=job.memory_mb_per_node)
    # --mem=0: all memory of each node, whatever it has, and at least that of the smallest.
    least_mb = min((node.memory_mb for node in context.chosen(allowed)), default=0)
    return Memory(per_node_mb=least_mb, whole=True)


def per_gpu_of(original: OriginalRequest, cluster: GpuDefaults, own: GpuDefaults) -> GpuDefaults:
    """CPUs and memory per GPU: as requested, else of the partition, else of the cluster.

    With ``--ntasks-per-gpu`` each GPU has at least the CPUs of its tasks.
    Slurm applies the defaults whenever it tries the job; ``-c`` disables that of CPUs, ``--mem``
    and ``--mem-per-cpu`` that of memory. Shards have none.
    """
    if shards_of(original.tres_per_node):
        return GpuDefaults()
    cpus = own.cpus if own.cpus is not None else cluster.cpus
    memory_mb = own.memory_mb if own.memory_mb is not None else cluster.memory_mb
    asked, asked_mb = gpu_item(original.cpus_per_tres), gpu_item(original.mem_per_tres)
    if asked is not None or original.cpus_per_task is not None:
        cpus = asked.count if asked is not None else None
    if asked_mb is not None or original.memory:
        memory_mb = asked_mb.count if asked_mb is not None else None
    if original.ntasks_per_tres is not None:
        cpus = max(cpus or 0, original.ntasks_per_tres * (original.cpus_per_task or 1))
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
    return (request.cpus.per_gpu or None) if any(d.cpus is not None for d in defaults) else None


def check_default_cpus(request: Request, entry: QueueEntry) -> None:
    """Leave a job to Slurm if its tasks do not share DefCpuPerGPU. Raises CannotPlanError."""
    per_gpu = default_cpus(entry.job, request, entry.context)
    most = entry.form.on_node or request.gpus
    if per_gpu is None or (most == 1 and entry.original.cpus_per_tres is None):
        return  # with one type of GPU on each node Slurm's own default works
    for nodes in {request.min_nodes, request.max_nodes or request.min_nodes}:
        if cpus_of_a_task(entry.original, per_gpu * request.gpus, nodes) is None:
            raise CannotPlanError("beside DefCpuPerGPU its tasks do not share the CPUs evenly")


def cpus_of(entry: QueueEntry) -> int:
    """CPUs of the job with its own number of GPUs; Slurm may show those of another size."""
    original = entry.original
    if original.resizable is not None and original.min_cpus is not None and entry.gated.bound:
        return max(1, original.min_cpus)
    return max(1, entry.job.cpus)
