"""Postponements: what a round remembers of a job that waits by choice, and when it looks again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.placement.account import set_words
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.placement.least import LeastSlowdown
from slurm_gpu_aware.placement.policy import WaitRule
from slurm_gpu_aware.planning.waiting import Later
from slurm_gpu_aware.time_text import duration, stamp

__all__ = ["in_words", "postponement", "still_waits"]


def still_waits(request: Request, cluster: Cluster, now: float, rule: WaitRule) -> bool:
    """Say whether no free set can be worth more than the one that the job waits for, by a bound.

    Until the expected start this spares the search. False: search again.
    """
    wait = request.postponed
    if wait is None or now >= wait.start_s:
        return False
    allowed = allowed_nodes(request, cluster)
    free = cluster.free if allowed is None else cluster.free & allowed[:, None]
    least = LeastSlowdown.of(request, cluster).among(free)
    run_s = request.expected_s
    return least < math.inf and now + run_s * least - rule.margin * run_s >= wait.end_s


def postponement(request: Request, later: Later, now: float, reason: str) -> Postponement:
    """The wait of a job for a later set."""
    found = later.assignment
    nodes = [later.cluster.nodes[node] for node in found.nodes]
    gpus = tuple(zip(nodes, found.slots, strict=True))
    return Postponement(request.waits_since(now), later.start_s, later.end_s, gpus, reason)


def in_words(later: Later, nodes: Sequence[str]) -> str:
    """Say what was weighed: ``expected at 2026-05-04 14:05 on n3 GPUs 0,1 (1.02); ...``.

    The part before the semicolon, which Slurm shows, changes only with the plan.
    """

    def words(found: Assignment) -> str:
        names = set_words(nodes, found.nodes, found.slots)
        return f"{names} ({found.slowdown:.2f})"

    return (
        f"expected at {stamp(later.start_s)[:16]} on {words(later.assignment)}; it ends"
        f" {duration(later.sooner_s)} sooner than now on {words(later.now)}"
    )
