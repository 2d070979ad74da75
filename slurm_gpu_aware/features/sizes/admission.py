"""Sizes of a moldable job (``gpus=MIN-MAX``) in its request."""

from dataclasses import replace
from itertools import takewhile

from slurm_gpu_aware.admission import sizes
from slurm_gpu_aware.admission.context import CannotPlanError, QueueEntry
from slurm_gpu_aware.admission.fitting import allowed_nodes, fits_idle
from slurm_gpu_aware.features.sizes.declared import GPUS
from slurm_gpu_aware.gate.request_forms import form_of
from slurm_gpu_aware.gate.resizing import resized, sizes_of
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import Request


def moldable(request: Request, entry: QueueEntry, hints: JobHints) -> Request:
    """The request with its sizes; as it is if the job must keep its number of GPUs.

    A job with tasks that do not follow its GPUs stays on as many nodes as its own number needs.
    """
    original, gpus = entry.original, hints.get(GPUS)
    counts = () if gpus is None else sizes_of(original, *gpus)
    if len(counts) < 2 or request.nodes.whole or request.sockets.bound:
        return request
    follows = original.resizable == "gpus"
    most = request.max_nodes
    if request.gpus_per_node is None and (original.nodes is None or original.nodes[1] is None):
        most = entry.partition.max_nodes if follows else request.fewest_nodes
    cpus = replace(request.cpus, task_per_gpu=follows)
    allowed = allowed_nodes(entry)
    full = replace(request, sizes=counts, cpus=cpus, max_nodes=most)
    if not fits_idle(full, entry.context):
        return request

    def fits(n: int) -> bool:
        return n == request.gpus or _fits(full.resized(n), entry, allowed)

    smaller = filter(fits, (n for n in counts if n < request.gpus))
    larger = takewhile(fits, (n for n in counts if n >= request.gpus))  # a range may be very wide
    fit = (*smaller, *larger)
    return replace(full, sizes=fit) if len(fit) > 1 else request


FITTED = moldable


def _fits(request: Request, entry: QueueEntry, allowed: BoolArray) -> bool:
    """Whether a size can be written to Slurm and fits in the idle cluster."""
    original = resized(entry.original, request.gpus)
    form = form_of(original)
    if form is None:
        return False
    other = replace(entry, gated=replace(entry.gated, original=original), form=form)
    per_gpu = sizes.per_gpu_of(original, entry.context.slurm.per_gpu, entry.partition.per_gpu)
    try:
        sizes.check_node_size(other, allowed, per_gpu)
        sizes.check_default_cpus(request, other)
    except CannotPlanError:
        return False
    return fits_idle(request, entry.context)
