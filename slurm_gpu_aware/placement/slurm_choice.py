"""GPUs that Slurm chooses on nodes that a policy has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.registry import SLURM, make_policy


def with_slurms_gpus(
    assignment: Assignment, request: Request, cluster: Cluster, options: Mapping[str, Any]
) -> Assignment:
    """The assignment with the GPUs that Slurm gives the request on these nodes (``ReqNodeList``).

    ``options``: those of the policy `SLURM`. Unchanged where the GPUs are known: single ones are
    named, whole nodes are taken, or Slurm chose. Where Slurm's rules for cores leave out nodes that
    the policy takes, it has the first free GPUs.
    """
    if assignment.exact or request.nodes.whole or assignment.policy == SLURM:
        return assignment
    chosen = np.zeros(len(cluster.nodes), dtype=np.bool_)
    chosen[list(assignment.nodes)] = True
    count = len(assignment.nodes)
    rules = replace(request.nodes, eligible=chosen, allowed=None, required=assignment.nodes)
    narrow = replace(request, nodes=rules, min_nodes=count, max_nodes=count)
    found = make_policy(SLURM, options).place(narrow, cluster)
    if found is not None and found.nodes == assignment.nodes and found.size == assignment.size:
        return replace(assignment, slots=found.slots)
    first = tuple(
        tuple(np.flatnonzero(cluster.free[node])[: len(slots)].tolist())
        for node, slots in assignment.gpus
    )
    return replace(assignment, slots=first)
