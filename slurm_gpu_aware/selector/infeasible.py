"""Infeasible jobs: no exact placement fits them, although Slurm could start them.

Drained GPUs can leave two nodes without a common set of indices, or 4 + 2 GPUs for a job of 6. At
the gate such a job would wait until the nodes are repaired; plain Slurm would start it.

A job for which an option of its policy (``single_node``, ``min_bandwidth_gbps``) forbids every
place is not left to Slurm, which would break that rule. It stays parked, and its reason names the
option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.dispatcher import shape_of
from slurm_gpu_aware.planning.plan import Waiting
from slurm_gpu_aware.selector.candidates import Candidate

__all__ = ["fits_by_counts", "left_to_slurm"]


def left_to_slurm(
    waiting: Iterable[Waiting],
    candidates: Mapping[str, Candidate],
    parked: Iterable[GatedJob],
    cluster: Cluster,
) -> list[tuple[GatedJob, str]]:
    """Parked records that are infeasible for us but fit by counts, each with the reason."""
    records = {job.job.raw_id: job for job in parked}
    leave: dict[int, tuple[GatedJob, str]] = {}
    fit: dict[object, bool] = {}
    for entry in waiting:
        candidate = candidates.get(entry.job_id)
        if not entry.infeasible or entry.by_policy or candidate is None:
            continue
        number = candidate.gated.job.raw_id
        if number in leave:  # another task of its array
            continue
        shape = shape_of(candidate.request)
        if shape not in fit:
            fit[shape] = fits_by_counts(candidate.request, cluster)
        if fit[shape]:
            leave[number] = (records[number], entry.reason)
    return list(leave.values())


def fits_by_counts(request: Request, cluster: Cluster) -> bool:
    """Whether the usable nodes have enough GPUs and CPUs, whatever indices and running jobs.

    Without a fixed count per node the GPUs may be spread unevenly.
    """
    if (groups := request.node_groups) is not None:
        # A job that Slurm would not start either stays parked.
        inside = request.eligible
        parts = [groups.of == group for group in np.unique(groups.of[groups.of >= 0])]
        return any(
            fits_by_counts(
                replace(request, node_groups=None, eligible=p if inside is None else p & inside),
                cluster,
            )
            for p in parts
        )
    counts = cluster.exists.sum(axis=1)
    if request.eligible is not None:
        counts = np.where(request.eligible, counts, 0)
    required = list(request.required)
    for nodes in request.node_counts(cluster.shape[1]):
        able = counts >= request.gpus // nodes
        if cluster.cpus is not None:
            able &= cluster.cpus >= request.cpus_on_node(nodes)
        if int(able.sum()) >= nodes and all(able[required]):
            return True
    if request.gpus_per_node is not None or request.whole_node or not all(counts[required]):
        return False
    most = min(request.max_nodes or request.gpus, request.gpus)
    others = np.sort(np.delete(counts, required))[::-1][: max(0, most - len(required))]
    enough = int(counts[required].sum() + others.sum()) >= request.gpus
    nodes_there = len(required) + int(np.count_nonzero(others))
    return enough and max(1, request.min_nodes) <= min(nodes_there, request.gpus)
