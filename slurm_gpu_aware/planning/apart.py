"""Nodes on which Slurm must not start the jobs whose GPUs it chooses. Pure functions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.planning.postponing import row_of


def with_slurms_choice(cluster: Cluster) -> Cluster:
    """The cluster with arrays in which a round notes what Slurm may give away, and where not."""
    nodes = cluster.shape[0]
    none, nowhere = np.zeros_like(cluster.free), np.zeros(nodes, np.bool_)
    return replace(
        cluster,
        by_slurm=none if cluster.by_slurm is None else cluster.by_slurm,
        starting=nowhere if cluster.starting is None else cluster.starting,
    )


def kept_apart(plan: Plan, queue: Sequence[Request], cluster: Cluster) -> Plan:
    """The plan with ``Assignment.kept_off`` of the jobs whose GPUs Slurm chooses.

    While other jobs of the queue want exact GPUs, such a job is kept to the nodes of its
    assignment, so that a later round can place them elsewhere before it has started. If it did not
    start there, or no other job waits, it is only kept off nodes on which it would take exact or
    reserved GPUs. Jobs that are not of the queue share GPUs that are in use: they take none.
    """
    left = {request.job_id: request for request in queue if request.left is not None}
    if not left:
        return plan
    exact = np.zeros(cluster.shape[0], np.bool_)
    if cluster.starting is not None:
        exact |= cluster.starting
    there = {request.job_id for request in queue}
    for one in plan.assignments:
        if one.job_id in there and one.job_id not in left:
            exact[list(one.nodes)] = True
    never = {one.job_id for one in plan.waiting if one.infeasible or one.failed}
    others = any(r.job_id not in left and r.job_id not in never for r in queue)
    assignments = [
        _kept_off(one, left[one.job_id], exact, others) if one.job_id in left else one
        for one in plan.assignments
    ]
    return replace(plan, assignments=tuple(assignments))


def guarded(plan: Plan, cluster: Cluster) -> dict[str, tuple[int, int, bool]]:
    """Node -> GPUs that the plan keeps for the first job that waits, the free ones, are they all.

    Without nodes on which a placed job is about to start: it needs what a reservation would take.
    """
    busy = np.zeros(cluster.shape[0], np.bool_)
    if cluster.starting is not None:
        busy |= cluster.starting
    if cluster.by_slurm is not None:
        busy |= cluster.by_slurm.any(axis=1)
    for one in plan.assignments:
        busy[list(one.nodes)] = True
    kept: dict[str, tuple[int, int, bool]] = {}
    first = next((one for one in plan.waiting if one.reserved or one.postponement), None)
    rows = row_of(cluster.nodes)
    gpus = () if first is None else first.reserved
    if first is not None and first.postponement is not None:  # it waits by its own choice
        named = first.postponement.gpus
        gpus = tuple((rows[name], slots) for name, slots in named if name in rows)
    for node, slots in gpus:
        if not busy[node]:
            free, exist = cluster.free[node, list(slots)], cluster.exists[node]
            kept[cluster.nodes[node]] = len(slots), int(free.sum()), len(slots) == int(exist.sum())
    return kept


def _kept_off(one: Assignment, request: Request, exact: BoolArray, others: bool) -> Assignment:
    assert request.left is not None  # noqa: S101 - the caller has checked
    if request.left.fixed:
        return replace(one, kept_off=())
    narrow = others and not request.left.again
    off = np.ones_like(exact) if narrow else exact.copy()
    off[list(one.kept_off)] = True
    off[list(one.nodes)] = False
    if request.nodes.eligible is not None:
        off &= request.nodes.eligible
    return replace(one, kept_off=tuple(np.flatnonzero(off).tolist()))
