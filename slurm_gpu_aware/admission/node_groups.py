"""Node groups: sets of nodes of which a job on several nodes must not leave one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.slurm.records import SlurmPartition
from slurm_gpu_aware.slurm.topology import BLOCK

__all__ = ["groups_of", "most_in_one_group", "required_groups"]


def groups_of(partition: SlurmPartition, context: AdmissionContext) -> NodeGroups | None:
    """Node groups of the partition's jobs; None: no such rule, or one that only Slurm knows."""
    return None if _own_topology(partition, context) else context.groups


def most_in_one_group(
    nodes: BoolArray, groups: NodeGroups | None, required: Sequence[int] = ()
) -> int:
    """How many of these nodes one job can have beside the ``required`` ones."""
    if groups is None:
        return int(nodes.sum())
    inside = groups.of >= 0
    if required:
        inside &= groups.of == groups.of[required[0]]  # `required_groups` checks the others
    return int(np.bincount(groups.of[nodes & inside]).max(initial=0))


def required_groups(
    request: Request,
    asked: tuple[int, int | None] | None,
    partition: SlurmPartition,
    context: AdmissionContext,
) -> NodeGroups | None:
    """Node groups of which the request must not leave one; None: it may use any nodes.

    ``asked``: the user's range of nodes if the request has only one number of it. Raises
    CannotPlanError.
    """
    eligible = request.eligible
    assert eligible is not None  # noqa: S101 - every translation sets it
    most_there = int(eligible.sum())
    counts = [n for n in request.node_counts(context.cluster.shape[1]) if n <= most_there]
    if asked is not None:
        counts += [asked[0], min(asked[1] or asked[0], most_there)]
    least, most = min(counts, default=1), max(counts, default=1)
    if _own_topology(partition, context):
        if most > 1:
            raise _unsupported(f"its partition has a topology of its own, {partition.topology}")
        return None
    groups = context.groups
    if groups is None:
        return None
    outside = np.flatnonzero(eligible & (groups.of < 0))
    if len(outside):
        name = context.cluster.nodes[int(outside[0])]
        raise _unsupported(f"node {name}, which it may use, is in no {groups.name}")
    if most <= 1:
        return None
    fabric = context.fabric
    if fabric.doubt is not None:
        raise _unsupported(f"Slurm's topology is not clear: {fabric.doubt}")
    if fabric.kind == BLOCK and most > fabric.block_size:
        count = f"{least}" if least == most else f"{least} to {most}"
        raise _unsupported(f"it has {count} nodes, and a block counts as {fabric.block_size}")
    if len({int(groups.of[node]) for node in request.required}) > 1:
        raise _unsupported(f"its required nodes are not in one {groups.name}")
    return groups


def _own_topology(partition: SlurmPartition, context: AdmissionContext) -> bool:
    return partition.topology not in ("", context.slurm.default_topology)


def _unsupported(why: str) -> CannotPlanError:
    return CannotPlanError(f"{why}; which nodes it gets together is left to Slurm", leave=True)
