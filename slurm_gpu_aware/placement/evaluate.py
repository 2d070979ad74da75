"""Cost of a set of GPUs for a job: worst score, locality level, predicted slowdown."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel

__all__ = ["level_of", "predicted_slowdown", "worst_score"]


def level_of(
    cluster: Cluster, nodes: Sequence[int], slots: Sequence[Sequence[int]]
) -> LocalityLevel:
    """Return the tightest level that holds all GPUs of the set.

    On plain nodes Slurm chooses the GPUs, so only a single GPU gets a level below the node there.
    """
    first = nodes[0]
    if len(nodes) == 1 and len(slots[0]) == 1:
        return cluster.levels[0]
    for level in cluster.levels:
        if level.group.ndim == 2:
            if len(nodes) > 1 or not cluster.indexed[first]:
                continue
            numbers = {level.group.item(first, slot) for slot in slots[0]}
        elif len(nodes) == 1:
            return level
        else:
            numbers = set(map(level.group.item, nodes))
        if len(numbers) == 1 and min(numbers) >= 0:
            return level
    return cluster.levels[-1]


def worst_score(
    cluster: Cluster, app_class: str, nodes: Sequence[int], slots: Sequence[Sequence[int]]
) -> float:
    """max V over the GPUs of the set.

    On a plain node Slurm may choose any free GPU, so free GPUs count as well.
    """
    scores = cluster.score(app_class)
    values = [0.0]
    for node, chosen in zip(nodes, slots, strict=True):
        values += [scores.item(node, slot) for slot in chosen]
        if not cluster.indexed.item(node):
            values += scores[node][cluster.free[node]].tolist()
    return float(max([v if isfinite(v) else 1.0 for v in values]))


def predicted_slowdown(
    cluster: Cluster, app_class: str, nodes: Sequence[int], slots: Sequence[Sequence[int]]
) -> tuple[float, str, float]:
    """Predict what a set of GPUs costs a job of a class.

    Parameters
    ----------
    nodes, slots : node indices and, parallel to them, the slots on each.

    Returns
    -------
    (score, level, slowdown) : worst binned PM score, name of the tightest level that holds the
        set, and t_iter / t_orig = L x max V (PAL, eq. 1).

    Examples
    --------
    >>> cluster = Cluster.uniform(2, 2, locality_penalty=1.5)
    >>> predicted_slowdown(cluster, "A", [0, 1], [[0], [0]])
    (1.0, 'cluster', 1.5)
    """
    score = worst_score(cluster, app_class, nodes, slots)
    level = level_of(cluster, nodes, slots)
    return score, level.name, level.of(app_class).value * score
