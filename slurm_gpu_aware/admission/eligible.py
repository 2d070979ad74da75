"""Eligible nodes of a job: by partition, features, ``-x``, reservations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Set

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError, QueueEntry
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmPartition, SlurmReservation

_TOKEN = re.compile(r"\s*([()&|,]|[A-Za-z0-9_.:+=-]+)")


def open_partitions(job: SlurmJob, context: AdmissionContext) -> list[SlurmPartition]:
    """The job's partitions that take it now, highest tier first. Raises CannotPlanError."""
    known = [context.partitions[p] for p in job.partitions if p in context.partitions]
    up = [p for p in known if p.up]
    if not up:
        raise CannotPlanError("its partition is not up", leave=False)
    fit = [p for p in up if math.isinf(job.time_limit_s) or job.time_limit_s <= p.max_time_s]
    if not fit:
        raise CannotPlanError("its time limit is longer than its partition allows", leave=False)
    return sorted(fit, key=lambda p: -p.priority_tier)


def allowed_nodes(entry: QueueEntry, blocked: frozenset[str] = frozenset()) -> BoolArray:
    """(N,) nodes that partition, features and ``-x`` allow, without the ``blocked`` ones.

    Raises CannotPlanError if only nodes with shared GPUs are allowed, where Slurm places.
    """
    context, original = entry.context, entry.original
    key = (entry.partition.name, original.exc_nodes, original.features, blocked)
    if key not in context.eligible:
        names = context.cluster.nodes
        if blocked:
            is_open = np.array([name not in blocked for name in names], dtype=np.bool_)
            allowed = allowed_nodes(entry) & is_open
        else:
            may_use = _may_use(entry)
            allowed = np.array([may_use(name) for name in names], dtype=np.bool_)
            if not allowed.any():
                leave_if_shared(entry)
        context.eligible[key] = allowed
    return context.eligible[key]


def leave_if_shared(entry: QueueEntry) -> None:
    """Raise CannotPlanError if the job may use nodes with shared GPUs."""
    may_use = _may_use(entry)
    if any(node.shared_gres and may_use(node.name) for node in entry.context.nodes.values()):
        why = "the GPUs of its nodes are cut in parts (MPS, MIG, shards that Slurm counts by node)"
        raise CannotPlanError(why)


def _may_use(entry: QueueEntry) -> Callable[[str], bool]:
    """Function: whether partition, features and ``-x`` allow a node, by its name."""
    original, nodes = entry.original, entry.context.nodes
    excluded = set(expand_hostlist(original.exc_nodes)) if original.exc_nodes else set()
    return lambda name: (
        name in entry.partition.nodes
        and name not in excluded
        and matches(original.features, nodes[name].features)
    )


def eligible_nodes(entry: QueueEntry, limit_s: float) -> BoolArray:
    """(N,) nodes that also reservations allow (see `allowed_nodes`). Raises CannotPlanError."""
    return allowed_nodes(entry, frozenset(_reserved(entry.job, entry.context, limit_s)))


def _reserved(job: SlurmJob, context: AdmissionContext, limit_s: float) -> set[str]:
    """Nodes that reservations keep from the job during its time limit."""
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
            raise CannotPlanError(f"reservation {own.name} holds only a part of its nodes")
        if own.active_at(context.now):
            others = [r for r in overlapping if r is not own and _goes_first(r, own, context)]
            inside |= own.nodes.difference(*(r.nodes for r in others))
    return set(context.cluster.nodes) - inside


def _goes_first(other: SlurmReservation, own: SlurmReservation, context: AdmissionContext) -> bool:
    """Whether it keeps jobs of ``own`` from nodes of both (24.11: job_test_resv, reservation.c)."""
    if other.name in context.partial or "MAINT" in own.flags:
        return False
    return "OVERLAP" not in own.flags or "MAINT" in other.flags


def check_not_shut_out(
    entry: QueueEntry, eligible: BoolArray, allowed: BoolArray, required: tuple[int, ...]
) -> None:
    """Leave a job to Slurm if a reservation of its nodes may let it in.

    Only Slurm knows which jobs a MAGNETIC reservation takes, and which cores and GPUs a reservation
    of a part of a node leaves. Raises CannotPlanError.
    """
    context = entry.context
    if entry.job.reservation or (eligible.any() and all(eligible[i] for i in required)):
        return
    here = {node.name for node in context.chosen(allowed & ~eligible)}
    for reservation in context.reservations:
        magnetic = "MAGNETIC" in reservation.flags and reservation.active_at(context.now)
        if here & reservation.nodes and (magnetic or reservation.name in context.partial):
            name = reservation.name
            raise CannotPlanError(f"reservation {name} holds its nodes, and may let it in")


def understood(expression: str | None) -> bool:
    """Whether `matches` can evaluate the expression."""
    try:
        matches(expression, frozenset())
    except ValueError:
        return False
    return True


def matches(expression: str | None, features: Set[str]) -> bool:
    """Whether ``--constraint`` allows a node with these features.

    Slurm reads ``&``, ``,`` and ``|`` from left to right without precedence. Raises ValueError for
    counts (``a*2``), brackets, negation and wrong expressions.
    """
    if not expression:
        return True
    tokens = _TOKEN.findall(expression)[::-1]
    value = _expression(tokens, features)
    if tokens or _TOKEN.sub("", expression):
        raise ValueError(f"constraint {expression!r} is not understood")
    return value


def _expression(tokens: list[str], features: Set[str]) -> bool:
    """Value of an expression, which is taken from the end of ``tokens``."""
    value = _operand(tokens, features)
    while tokens and tokens[-1] in "&|,":
        operator = tokens.pop()
        right = _operand(tokens, features)
        value = (value or right) if operator == "|" else (value and right)
    return value


def _operand(tokens: list[str], features: Set[str]) -> bool:
    word = tokens.pop() if tokens else ")"
    if word in "&|,)":
        raise ValueError("constraint ends too early")
    if word != "(":
        return word in features
    value = _expression(tokens, features)
    if not tokens or tokens.pop() != ")":
        raise ValueError("constraint lacks a closing parenthesis")
    return value
