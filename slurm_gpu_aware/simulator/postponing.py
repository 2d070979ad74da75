"""When a job that its policy postpones is due: ``topo-aware-p`` asks for less with time.

A threshold falls while nothing arrives or ends. Live the next round comes after seconds anyway; a
virtual clock that only knows arrivals and ends would never look again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.drb.options import read_options
from slurm_gpu_aware.placement.policy import Policy, option_names
from slurm_gpu_aware.planning.dispatcher import capacity_request, shape_of

__all__ = ["ages", "next_due", "undemanding"]

_STEP = 1e-4
"""Utilities in an account are rounded to this: a job may be woken so much later, never earlier."""


def ages(policy: str) -> bool:
    """Whether the policy postpones jobs and gets less choosy while they wait."""
    return "waited_s" in option_names(policy)


def undemanding(request: Request, policy: str) -> Request:
    """The request as a question of capacity: whatever utility it finds is enough."""
    if "minimal_utility" not in option_names(policy):
        return request
    return capacity_request(request)


def next_due(
    requests: Iterable[Request],
    policy: Policy,
    options: Mapping[str, Any],
    cluster: Cluster,
    now: float,
) -> float | None:
    """First time after ``now`` at which one of these waiting requests asks for no more than the
    best that the cluster has for it now; None if there is no such time.

    The threshold of a request falls linearly to 0 over its patience (``topo_options``), so it
    meets the utility u at submission + patience (1 - u / threshold).
    """
    best: dict[object, float | None] = {}
    due = []
    for request in requests:
        wanted = read_options(policy.name, {**options, **request.options})
        threshold = replace(wanted, waited_s=0.0).threshold(request.gpus)
        if math.isinf(wanted.patience_s) or threshold <= 0:
            continue
        asked = undemanding(request, policy.name)
        shape = shape_of(asked)
        if shape not in best:
            found = policy.place(asked, cluster)
            best[shape] = None if found is None else float(found.why["utility"])
        utility = best[shape]
        if utility is None:
            continue
        share = 1.0 - max(utility - _STEP, 0.0) / threshold
        time = request.submit_s + wanted.patience_s * share
        if time > now:
            due.append(time)
    return min(due, default=None)
