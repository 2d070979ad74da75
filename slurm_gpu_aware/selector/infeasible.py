"""Infeasible jobs: no exact placement will ever fit them, although Slurm itself could start them.

Drained GPUs may leave two nodes without a common set of indices, or 4 + 2 GPUs where a job asks for
6. At our gate such a job would wait until somebody mends the nodes; plain Slurm would start it.

A job that an option of its policy forbids every place (``single_node``, ``min_bandwidth_gbps``) is
not one of them: Slurm would break the rule that the site or the user has set. It stays parked, and
the reason, which the policy states itself, names the option.
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
from slurm_gpu_aware.selector.placer import Candidate

__all__ = ["fits_by_counts", "left_to_slurm"]


def left_to_slurm(
    waiting: Iterable[Waiting],
    candidates: Mapping[str, Candidate],
    parked: Iterable[GatedJob],
    cluster: Cluster,
) -> list[tuple[GatedJob, str]]:
    """Parked records, each with the reason, that never fit our way but fit by numbers."""
    records = {job.job.raw_id: job for job in parked}
    found: dict[int, tuple[GatedJob, str]] = {}
    fit: dict[object, bool] = {}
    for entry in waiting:
        candidate = candidates.get(entry.job_id)
        if not entry.infeasible or entry.by_policy or candidate is None:
            continue
        number = candidate.gated.job.raw_id
        if number in found:  # another task of its array
            continue
        shape = shape_of(candidate.request)
        if shape not in fit:
            fit[shape] = fits_by_counts(candidate.request, cluster)
        if fit[shape]:
            found[number] = (records[number], entry.reason)
    return list(found.values())


def fits_by_counts(request: Request, cluster: Cluster) -> bool:
    """Whether the usable nodes have GPUs and CPUs enough, whatever the indices and who is on them.

    Where the request does not fix the count per node the GPUs may be spread unevenly.
    """
    if (kept := request.node_groups) is not None:
        # What Slurm would not start either stays with us.
        inside = request.eligible
        parts = [kept.of == group for group in np.unique(kept.of[kept.of >= 0])]
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
