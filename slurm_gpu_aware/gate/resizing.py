"""Sizes of a moldable job: its request as if it had been submitted for another number of GPUs.

The filter allows ``gpus=MIN-MAX`` only for forms that can be written anew (``resizable`` in the
record, ``etc/lua/gpu_aware_sizes.lua``). A resized request has the same form: what follows the
GPUs has another number, everything else stays. So it is translated and placed as any other one.
"""

from dataclasses import replace

from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.request_forms import (
    Binding,
    Fields,
    form_of,
    placed_fields,
    tasks_of,
)
from slurm_gpu_aware.slurm.gres import gpu_item
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.slurm.updates import TRES_FIELDS


def sizes_of(original: OriginalRequest, least: int, most: int) -> tuple[int, ...]:
    """GPU counts in ``least`` .. ``most``, ascending: that of the request, and doubling steps.

    With a fixed number of nodes each has 1, 2, 4, ... GPUs. Empty if the job must keep its number.
    """
    gpus = _total(original)
    if original.resizable is None or gpus is None or not least <= gpus <= most:
        return ()
    counts, step = {gpus}, _nodes(original)
    while step <= most:
        if step >= least:
            counts.add(step)
        step *= 2
    return tuple(sorted(counts))


def resized(original: OriginalRequest, gpus: int) -> OriginalRequest:
    """The request for another number of GPUs in total, one of its sizes."""
    form, before = form_of(original), _total(original)
    if form is None or before is None or gpus == before:
        return original
    tasks = original.num_tasks
    if original.resizable == "gpus" and tasks is not None:
        tasks = tasks * gpus // before
    sized = replace(original, num_tasks=tasks)
    if form.kind == "task":
        return sized
    count = gpus // _nodes(original) if form.kind == "node" else gpus
    text = ",".join([f"gres/gpu:{count}", *form.item.others])
    if form.kind == "node":
        return replace(sized, tres_per_node=text)
    return replace(sized, tres_per_job=text)


def bound_fields(original: OriginalRequest, binding: Binding) -> Fields:
    """Fields that bind a job, with the number of GPUs of the binding (see `placed_fields`)."""
    if binding.gpus is None or (sized := resized(original, binding.gpus)) is original:
        return placed_fields(original, binding)
    fields = {
        name: text or ""
        for name, field in TRES_FIELDS.items()
        if (text := getattr(sized, field)) != getattr(original, field)
    }
    tasks = tasks_of(sized, len(binding.nodes))
    if original.resizable == "gpus" and tasks is not None:
        per_gpu = gpu_item(original.cpus_per_tres)
        of_gpus = per_gpu.count * binding.gpus if per_gpu is not None else 0
        cpus = max(tasks * (original.cpus_per_task or 1), of_gpus)
        fields |= {"NumTasks": str(tasks), "NumCPUs": str(cpus)}
    return tuple((fields | dict(placed_fields(sized, binding))).items())


def as_shown(job: SlurmJob, original: OriginalRequest) -> OriginalRequest:
    """The request with the number of GPUs that Slurm shows for a job, whose GPUs have no types."""
    if original.resizable is None:
        return original
    return replace(
        original,
        tres_per_node=job.tres_per_node,
        tres_per_job=job.tres_per_job,
        num_tasks=None if original.num_tasks is None else job.tasks,
    )


def _total(original: OriginalRequest) -> int | None:
    """GPUs of the request in total; None: they depend on the nodes."""
    form = form_of(original)
    if form is None:
        return None
    if form.on_node is not None:
        return form.on_node * _nodes(original)
    return form.item.count * (1 if form.kind == "job" else original.num_tasks or 0) or None


def _nodes(original: OriginalRequest) -> int:
    """The fixed number of nodes of a resizable request; 1: it fixes none."""
    least, most = original.nodes or (1, None)
    return least if least == most else 1
