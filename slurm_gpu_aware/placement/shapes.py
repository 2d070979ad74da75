"""Shapes of an allocation: one node, even, the same indices on each node, uneven.

On a *plain* node Slurm picks the GPU, so any free one may come: all its GPUs count with the score
of the worst free one. A job on several nodes under Slurm's constraint takes either indexed nodes
(same slots on each) or plain nodes (same count on each), never both: its one GRES line would name
types that the other kind does not have. Of as many nodes the indexed ones are preferred, because
only on these is the choice of GPUs ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.masks import every

__all__ = ["Split", "splits"]

Pool = Literal["all", "indexed", "plain"]


@dataclass(frozen=True, eq=False)
class Split:
    """One way to spread a request's GPUs over nodes. Compared by identity: it keys the search."""

    nodes: int
    """Number of nodes; 0: any number within the request's bounds, uneven."""
    per_node: int
    """GPUs on each node; 0: uneven."""
    same_slots: bool = False
    """Every node gives the same slots (one GRES line)."""
    pool: Pool = "all"

    @property
    def uneven(self) -> bool:
        """True if nodes may give different counts."""
        return self.nodes == 0


def splits(request: Request, cluster: Cluster) -> tuple[Split, ...]:
    """Return the splits that the request and the cluster's GRES rule allow, fewest nodes first."""
    counts = request.node_counts(cluster.shape[1])
    most = request.max_nodes if request.max_nodes is not None else request.gpus
    fewest = max(request.min_nodes, len(request.required))
    free_choice = not (request.whole_node or cluster.same_indices or request.gpus_per_node)
    return _splits(
        tuple((n, request.gpus // n) for n in counts),
        same_slots=cluster.same_indices and not request.whole_node,
        plain=not every(cluster.indexed),
        uneven=free_choice and most > 1 and request.gpus > 1 and fewest <= min(most, request.gpus),
        even=not free_choice,
    )


@lru_cache(maxsize=4096)
def _splits(
    counts: tuple[tuple[int, int], ...], *, same_slots: bool, plain: bool, uneven: bool, even: bool
) -> tuple[Split, ...]:
    """``counts``: nodes and GPUs on each. Equal questions get the same objects."""
    found: list[Split] = []
    for nodes, per_node in counts:
        if nodes == 1:
            found.append(Split(1, per_node))
        elif same_slots:
            found.append(Split(nodes, per_node, True, "indexed" if plain else "all"))
            if plain:
                found.append(Split(nodes, per_node, pool="plain"))
        elif even:
            found.append(Split(nodes, per_node))
    return (*found, Split(0, 0)) if uneven else tuple(found)
