"""GPUs of which jobs have shards: how many are free, and which job frees the GPU."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.admission.context import CannotPlanError, QueueEntry
from slurm_gpu_aware.admission.fitting import leave_if_shared
from slurm_gpu_aware.features.shards.hints import SHARDS
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Gpu, RunningJob, Shards
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.request import PreemptionRights, Request
from slurm_gpu_aware.slurm.records import SlurmNode
from slurm_gpu_aware.time_text import counted


def shards_of_nodes(
    nodes: Sequence[SlurmNode],
    installed: BoolArray,
    exists: BoolArray,
    indexed: BoolArray,
    busy: Set[str],
    held: Iterable[tuple[Gpu, int]],
) -> Shards | None:
    """Shards of the GPUs of indexed nodes whose shards have types; None: there are none.

    ``busy``: nodes on which no job can start. ``held``: GPUs of released jobs, and their shards.
    """
    if not any(node.shards for node in nodes):
        return None
    total = np.zeros(exists.shape, dtype=np.int64)
    used = np.zeros_like(total)
    typed = (i for i in np.flatnonzero(indexed).tolist() if not nodes[i].untyped_shards)
    for i in typed:
        for slot, (in_use, number) in nodes[i].shards.items():
            if slot < exists.shape[1] and installed[i, slot]:
                total[i, slot], used[i, slot] = number, in_use
    for gpu, number in held:
        used[gpu] += number
    free = np.where(exists & (used > 0), np.maximum(total - used, 0), 0)
    for i, node in enumerate(nodes):
        whole = [slot for slot in node.gpus_used if slot < exists.shape[1]]
        free[i, whole] = 0  # Slurm has mixed them up
        if node.name in busy:
            free[i] = 0
    return Shards(total, free)


def shard_request(request: Request, entry: QueueEntry) -> Request:
    """The request, if it asks for shards as one of a part of a GPU. Raises CannotPlanError.

    No clock is set: the jobs on a GPU have one. It preempts none: the GPU's other jobs would stay.
    """
    shards, context, cluster = entry.form.shards, entry.context, entry.context.cluster
    if not shards:
        return request
    if request.gpus > 1 or request.nodes.whole or request.sockets.given:
        raise CannotPlanError(
            "shards of several nodes, whole nodes or one socket are left to Slurm"
        )
    nodes, eligible = request.nodes, request.unreserved.nodes.eligible
    assert nodes.eligible is not None and eligible is not None  # noqa: S101, PT018 - it is set
    here = eligible.copy()
    if nodes.required:
        here &= np.isin(np.arange(len(here)), nodes.required)
    none = np.zeros(cluster.shape, dtype=np.int64)
    total = none if cluster.shards is None else cluster.shards.total
    able = np.where(context.repaired.exists, total, shards).min(axis=1) >= shards
    able &= total.any(axis=1) & here
    others = context.chosen(here & context.usable & ~able)
    if not able.any() or any(node.shards for node in others):
        why = "some GPUs that it may get have fewer shards, or shards without a type of their own"
        if not able.any():
            why = f"no GPU that it may get has {counted(shards, 'shard')} of a type of its own"
        raise CannotPlanError(why)
    leave_if_shared(entry)
    return replace(
        request,
        nodes=replace(nodes, eligible=able & nodes.eligible, allowed=able),
        clock="default",
        facets=named(SHARDS, shards),
        preemption=PreemptionRights(own_group=request.preemption.own_group),
    )


def last_holders(running: Sequence[RunningJob], shared: frozenset[Gpu]) -> list[RunningJob]:
    """The jobs, each with those of the ``shared`` GPUs that it holds longest; others stay."""
    last: dict[Gpu, RunningJob] = {}
    for job in running:
        for gpu in shared.intersection(job.each_gpu):
            if gpu not in last or job.end_s > last[gpu].end_s:
                last[gpu] = job
    found = []
    for job in running:
        if not shared.isdisjoint(job.each_gpu):
            kept = (
                (node, tuple(s for s in slots if last.get((node, s), job) is job))
                for node, slots in job.gpus
            )
            job = replace(job, gpus=tuple((node, slots) for node, slots in kept if slots))
        found.append(job)
    return found
