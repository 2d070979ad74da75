"""Eligible nodes of a job: by partition, features, ``-x``, reservations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.features import matches
from slurm_gpu_aware.admission.fitting import fits_idle
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmPartition, SlurmReservation

__all__ = [
    "allowed_nodes",
    "check_not_shut_out",
    "check_not_too_large",
    "eligible_nodes",
    "open_partitions",
]


def open_partitions(job: SlurmJob, context: AdmissionContext) -> list[SlurmPartition]:
    """The job's partitions that take it now, highest tier first.

    Raises CannotPlanError if there is none.
    """
    known = [context.partitions[p] for p in job.partitions if p in context.partitions]
    up = [p for p in known if p.up]
    if not up:
        raise CannotPlanError("its partition is not up", leave=False)
    fit = [p for p in up if math.isinf(job.time_limit_s) or job.time_limit_s <= p.max_time_s]
    if not fit:
        raise CannotPlanError("its time limit is longer than its partition allows", leave=False)
    return sorted(fit, key=lambda p: -p.priority_tier)


def allowed_nodes(
    original: OriginalRequest, context: AdmissionContext, partition: SlurmPartition
) -> BoolArray:
    """(N,) nodes that partition, features and ``-x`` allow, without regard to reservations.

    Raises CannotPlanError if they are only nodes with shared GPUs, where Slurm places.
    """
    key = (partition.name, original.exc_nodes, original.features)
    known = context.eligible.get(key)
    if known is not None:
        return known
    may_use = _may_use(original, context, partition)
    allowed = np.array([may_use(name) for name in context.cluster.nodes], dtype=np.bool_)
    if not allowed.any():
        _leave_if_shared(may_use, context)
    context.eligible[key] = allowed
    return allowed


def check_not_too_large(
    request: Request,
    original: OriginalRequest,
    context: AdmissionContext,
    partition: SlurmPartition,
) -> None:
    """Leave a job to Slurm that fits no idle whole GPUs, but perhaps shared ones.

    Raises CannotPlanError.
    """
    if not fits_idle(request, context):
        _leave_if_shared(_may_use(original, context, partition), context)


def _may_use(
    original: OriginalRequest, context: AdmissionContext, partition: SlurmPartition
) -> Callable[[str], bool]:
    """Function: whether partition, features and ``-x`` allow a node, by its name."""
    excluded = set(expand_hostlist(original.exc_nodes)) if original.exc_nodes else set()
    return lambda name: (
        name in partition.nodes
        and name not in excluded
        and matches(original.features, context.nodes[name].features)
    )


def _leave_if_shared(may_use: Callable[[str], bool], context: AdmissionContext) -> None:
    if any(node.shared_gres and may_use(node.name) for node in context.nodes.values()):
        raise CannotPlanError(
            "the GPUs of its nodes are shared or cut in parts (MPS, shards, MIG)", leave=True
        )


def eligible_nodes(
    job: SlurmJob,
    original: OriginalRequest,
    context: AdmissionContext,
    partition: SlurmPartition,
    limit_s: float,
) -> BoolArray:
    """(N,) nodes that partition, features, ``-x`` and reservations allow."""
    blocked = frozenset(_reserved(job, context, limit_s))
    if not blocked:
        return allowed_nodes(original, context, partition)
    key = (partition.name, original.exc_nodes, original.features, blocked)
    known = context.eligible.get(key)
    if known is None:
        open_to_all = np.array(
            [name not in blocked for name in context.cluster.nodes], dtype=np.bool_
        )
        known = allowed_nodes(original, context, partition) & open_to_all
        context.eligible[key] = known
    return known


def _reserved(job: SlurmJob, context: AdmissionContext, limit_s: float) -> set[str]:
    """Nodes that reservations keep from the job during its time limit.

    Raises CannotPlanError.
    """
    end_s = context.now + limit_s
    overlapping = [r for r in context.reservations if r.start_s < end_s and r.end_s > context.now]
    wanted = set((job.reservation or "").split(",")) - {""}
    if not wanted:
        return set().union(*(r.nodes for r in overlapping))
    inside: set[str] = set()
    for own in context.reservations:
        if own.name not in wanted:
            continue
        if own.name in context.partial:
            raise CannotPlanError(
                f"reservation {own.name} holds only a part of its nodes", leave=True
            )
        if own.active_at(context.now):
            others = [r for r in overlapping if r is not own and _goes_first(r, own, context)]
            inside |= own.nodes.difference(*(r.nodes for r in others))
    return set(context.cluster.nodes) - inside


def _goes_first(other: SlurmReservation, own: SlurmReservation, context: AdmissionContext) -> bool:
    """Whether a reservation keeps jobs of ``own`` from nodes that both hold.

    As slurmctld does (job_test_resv in reservation.c, 24.11).
    """
    if other.name in context.partial or "MAINT" in own.flags:
        return False
    return "OVERLAP" not in own.flags or "MAINT" in other.flags


def check_not_shut_out(
    job: SlurmJob,
    eligible: BoolArray,
    allowed: BoolArray,
    required: tuple[int, ...],
    context: AdmissionContext,
) -> None:
    """Leave a job to Slurm if a reservation of its nodes may let it in.

    Only Slurm knows which jobs a MAGNETIC reservation takes, and which cores and GPUs a reservation
    of a part of a node leaves. Raises CannotPlanError.
    """
    if job.reservation or (eligible.any() and all(eligible[i] for i in required)):
        return
    here = {name for i, name in enumerate(context.cluster.nodes) if allowed[i] and not eligible[i]}
    for reservation in context.reservations:
        magnetic = "MAGNETIC" in reservation.flags and reservation.active_at(context.now)
        if here & reservation.nodes and (magnetic or reservation.name in context.partial):
            raise CannotPlanError(
                f"reservation {reservation.name} holds its nodes, and may let it in", leave=True
            )
