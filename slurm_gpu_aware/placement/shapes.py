"""Splits, the shapes of an allocation: one node, even, same indices on each node, uneven.

On a *plain* node Slurm may choose any free GPU, so all its GPUs count with the worst free score. A
job on several nodes takes either indexed nodes (same slots on each), which are preferred, or plain
nodes (same count on each), because its one GRES line names types that the other nodes lack.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.masks import every

Pool = Literal["all", "indexed", "plain"]


@dataclass(frozen=True, eq=False)
class Split:
    """One way to spread a request's GPUs over nodes. Compared by identity, as a search key."""

    nodes: int
    """Number of nodes; 0: uneven, any number within the request's bounds."""
    per_node: int
    """GPUs on each node; 0: uneven."""
    same_slots: bool = False
    """Every node gives the same slots (one GRES line)."""
    pool: Pool = "all"

    @property
    def uneven(self) -> bool:
        """Nodes may give different counts."""
        return self.nodes == 0


def splits(request: Request, cluster: Cluster) -> tuple[Split, ...]:
    """Return the splits that the request and the cluster's GRES rule allow, fewest nodes first."""
    counts = request.gpus, request.fewest_nodes, request.max_nodes, request.gpus_per_node
    plain, width = not every(cluster.indexed), cluster.shape[1]
    return _splits(counts, width, request.whole_node, cluster.same_indices, plain)


@lru_cache(maxsize=4096)
def _splits(
    counts: tuple[int, int, int | None, int | None],
    width: int,
    whole_node: bool,
    same_indices: bool,
    plain: bool,
) -> tuple[Split, ...]:
    """``counts``: GPUs, least and most nodes, GPUs per node. ``width``: GPUs of the widest node."""
    request = Request("", *counts)
    free_choice = not (whole_node or same_indices or request.gpus_per_node)
    found: list[Split] = []
    for nodes in request.node_counts(width):
        per_node = request.gpus // nodes
        if nodes == 1:
            found.append(Split(1, per_node))
        elif same_indices and not whole_node:
            found.append(Split(nodes, per_node, True, "indexed" if plain else "all"))
            if plain:
                found.append(Split(nodes, per_node, pool="plain"))
        elif not free_choice:
            found.append(Split(nodes, per_node))
    most = request.gpus if request.max_nodes is None else min(request.max_nodes, request.gpus)
    if free_choice and most > 1 and request.fewest_nodes <= most:
        found.append(Split(0, 0))
    return tuple(found)
