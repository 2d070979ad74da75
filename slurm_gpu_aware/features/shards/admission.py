"""Request of a job that asks for shards."""

from dataclasses import replace

import numpy as np

from slurm_gpu_aware.admission.context import CannotPlanError, QueueEntry
from slurm_gpu_aware.admission.fitting import leave_if_shared
from slurm_gpu_aware.features.shards.declared import SHARDS
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import PreemptionRights, Request
from slurm_gpu_aware.time_text import counted


def shard_request(request: Request, entry: QueueEntry, hints: JobHints) -> Request:
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


FITTED = shard_request
