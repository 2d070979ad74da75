"""Jobs that wait by choice, and nodes on which Slurm must not start those whose GPUs it chooses.

Until the expected start a job waits on for the same GPUs, unless free ones are now as good.
All functions are pure.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpus
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.placement.account import set_words
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.level_views import by_identity
from slurm_gpu_aware.placement.policy import WaitRule
from slurm_gpu_aware.placement.shapes import LeastSlowdown
from slurm_gpu_aware.planning.facts import WaitsUntil
from slurm_gpu_aware.planning.later import Later, worth_until_s
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.time_text import duration, stamp


def awaited(request: Request, wait: Postponement, cluster: Cluster) -> Gpus:
    """(node, slots) of the GPUs that a postponed job waits for; (): it may not take them."""
    found, allowed = _there(wait, cluster.nodes, cluster.exists), allowed_nodes(request, cluster)
    if allowed is not None and not all(allowed[node] for node, _ in found):
        return ()
    return found if sum(len(slots) for _, slots in found) >= request.gpus else ()


@by_identity
def _there(wait: Postponement, nodes: tuple[str, ...], exists: BoolArray) -> Gpus:
    """(node, slots) of the GPUs of a wait, ascending; (): some do not exist."""
    rows = row_of(nodes)
    found = tuple(sorted((rows.get(name, -1), slots) for name, slots in wait.gpus))

    def known(node: int, slots: tuple[int, ...]) -> bool:
        return node >= 0 and max(slots) < exists.shape[1] and bool(exists[node, list(slots)].all())

    return found if all(known(*one) for one in found) else ()


def least_now(request: Request, cluster: Cluster, *, common: bool = False) -> float:
    """Bound of the slowdown of a start now; inf: no set fits. ``common``: as of `LeastSlowdown`."""
    allowed = allowed_nodes(request, cluster)
    free = cluster.free if allowed is None else cluster.free & allowed[:, None]
    return LeastSlowdown.of(request, cluster).among(free, common=common)


def postponement(request: Request, later: Later, now: float, cluster: Cluster) -> Postponement:
    """The wait of a job for a later set."""
    found = later.assignment
    names = [cluster.nodes[node] for node in found.nodes]
    gpus = tuple(zip(names, found.slots, strict=True))
    reason = f"postponed: {weighed_words(later, cluster)}"
    return Postponement(request.wait.since(now), later.start_s, later.end_s, gpus, reason)


def weighed_words(later: Later, cluster: Cluster) -> str:
    """Say what was weighed: ``expected at 2026-05-04 14:05 on n3 GPUs 0,1 (1.02); ...``.

    The part before the semicolon, which Slurm shows, changes only with the plan.
    """

    def words(found: Assignment) -> str:
        names = set_words(cluster, found.nodes, found.slots)
        return f"{names} ({found.slowdown:.2f})"

    return (
        f"expected at {stamp(later.start_s)[:16]} on {words(later.assignment)}; it ends"
        f" {duration(later.sooner_s)} sooner than now on {words(later.now)}"
    )


def with_bound(
    here: Assignment, request: Request, cluster: Cluster, now: float, rule: WaitRule | None
) -> Assignment:
    """The set of a job that starts now; its account says if the longest wait kept it from more."""
    if rule is None or not 0.0 < request.expected_s < math.inf:
        return here
    until_s = rule.by_longest_s(request)
    cut_s = max(now, until_s)
    if cut_s >= rule.by_share_s(request, now):
        return here
    least = LeastSlowdown.of(request, cluster)
    if cut_s >= worth_until_s(request, here, least, now, rule):
        return here
    return here.explained(WaitsUntil(until_s))


@by_identity
def row_of(nodes: tuple[str, ...]) -> dict[str, int]:
    """Node -> its index."""
    return {name: row for row, name in enumerate(nodes)}


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
