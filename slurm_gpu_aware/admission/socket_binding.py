"""Socket binding: jobs with ``--gres-flags=enforce-binding``, and which are left to Slurm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError, QueueEntry
from slurm_gpu_aware.admission.fitting import fits_idle
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmJob

__all__ = ["bind", "check_binding", "fills_sockets", "is_bound"]


def is_bound(job: SlurmJob, slurm: SlurmConfig) -> bool:
    """Whether a job gets only cores of its GPUs' sockets, by its option or by default."""
    return slurm.enforce_binding if job.enforce_binding is None else job.enforce_binding


def fills_sockets(original: OriginalRequest, nodes: int) -> bool:
    """Whether Slurm gives a bound job on ``nodes`` nodes every free core beside its GPUs.

    It does unless the job fixes the tasks per node, because it then assumes one task per CPU
    (``eval_nodes_select_cores`` in Slurm's eval_nodes.c). ``--gres=gpu:2`` gets all 8 CPUs of a
    socket, and 1 CPU without binding (``docs/internals/requests.md``).
    """
    tasks = original.num_tasks
    return not original.ntasks_per_node and (
        tasks is None or (tasks > 1 and nodes not in (1, tasks))
    )


def bind(request: Request, entry: QueueEntry) -> Request:
    """The request, bound if the job is; ``--exclusive`` gives it all cores in any case."""
    if request.whole_node or not is_bound(entry.job, entry.context.slurm):
        return request
    most = max(request.min_nodes, request.max_nodes or request.gpus)
    fills = any(fills_sockets(entry.original, n) for n in {request.min_nodes, most})
    # With --gpus and 1 CPU per node Slurm considers only one socket (_socks_per_node).
    several = 2 if entry.form.kind == "job" else 0
    return replace(request, bound=True, fills_sockets=fills, several_sockets=several)


def check_binding(request: Request, context: AdmissionContext) -> None:
    """Leave a bound job to Slurm if its sockets cannot be planned, so that it waits no longer.

    Raises CannotPlanError.
    """
    if not request.bound:
        return
    left, sockets = "--gres-flags=enforce-binding is left to Slurm", context.cluster.sockets
    if sockets is None or not context.slurm.counts_cores:
        raise CannotPlanError(f"{left}, which counts no single cores here")
    unknown = np.any(context.cluster.exists & (sockets.gpu < 0), axis=1)
    if request.eligible is not None:
        unknown &= request.eligible
    if nodes := context.chosen(unknown):
        name = nodes[0].name
        raise CannotPlanError(f"{left}: the GPUs of node {name} are not each bound to one socket")
    if fits_idle(replace(request, bound=False), context) and not fits_idle(request, context):
        raise CannotPlanError(f"{left}: no socket has its GPUs and CPUs together")
