"""Simulated site: an idle cluster with the planner's scores and the true ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.arrays import BoolArray, FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.penalties import LevelPenalties
from slurm_gpu_aware.simulator.timings import Draw, on_gpus
from slurm_gpu_aware.topology.locality import with_levels
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.variability.bins import bin_scores

PENALTIES: Mapping[str, float] = {"node": 1.0, "cluster": 1.5}
"""L of the two levels of PAL."""


@dataclass(frozen=True, eq=False)
class SimulatedSite:
    """An idle cluster in two views: binned scores for the planner, exact ones for the jobs."""

    cluster: Cluster
    truth: Mapping[str, FloatArray]
    """Class -> (N, W) scores at which jobs run."""
    label: str
    variability: str = "none: all GPUs are equal"
    """Origin of the scores."""

    def as_json(self) -> dict[str, Any]:
        """Size, levels, and per class the range of the scores and the number of bins."""
        there = self.cluster.exists
        return {
            "label": self.label,
            "nodes": len(self.cluster.nodes),
            "gpus": int(there.sum()),
            "levels": {level.name: level.penalty for level in self.cluster.levels},
            "levels_by_class": {
                name: {level.name: level.of(name).value for level in self.cluster.levels}
                for name in self.cluster.levels[0].by_class
            },
            "same_indices": self.cluster.same_indices,
            "links_known": any(graph is not None for graph in self.cluster.graphs),
            "variability": self.variability,
            "scores": {
                name: {
                    "min": float(scores[there].min()),
                    "median": float(np.median(scores[there])),
                    "max": float(scores[there].max()),
                    "bins": len(np.unique(self.cluster.score(name)[there])),
                }
                for name, scores in self.truth.items()
            },
        }


def synthetic_site(
    nodes: int,
    gpus_per_node: int | None = None,
    *,
    machine_name: str | None = None,
    penalties: Mapping[str, float] | LevelPenalties = PENALTIES,
    same_indices: bool = True,
) -> SimulatedSite:
    """Equal nodes (``n1``, ...) by GPU count, or by machine with its links. Raises SourceError."""
    graph = None
    if machine_name is not None:
        try:
            graph = machine(machine_name)
        except ValueError as exc:
            raise SourceError(str(exc)) from None
        if gpus_per_node not in (None, graph.n):
            raise SourceError(f"{machine_name} has {graph.n} GPUs, not {gpus_per_node}")
    width = graph.n if graph is not None else gpus_per_node or 0
    if not 1 <= width <= MAX_GPUS_PER_NODE:
        raise SourceError(
            f"a node has 1 to {MAX_GPUS_PER_NODE} GPUs: give --gpus-per-node or --machine"
        )
    names = [f"n{i + 1}" for i in range(nodes)]
    cluster = Cluster.uniform(names, width, graph=graph, same_indices=same_indices)
    what = f"{machine_name} ({width} GPUs)" if machine_name else f"{width} GPUs"
    label = f"{nodes} node{'s' if nodes > 1 else ''} with {what}"
    return SimulatedSite(with_levels(cluster, penalties), {}, label)


def stored_site(
    cluster: Cluster, raw_scores: Mapping[str, Mapping[tuple[str, int], float]]
) -> SimulatedSite:
    """The profiled cluster; jobs run at the raw scores of the store."""
    row = {name: i for i, name in enumerate(cluster.nodes)}
    truth = {name: np.ones(cluster.exists.shape) for name in raw_scores}
    for name, scores in raw_scores.items():
        for (node, slot), score in scores.items():
            if node in row and slot < cluster.shape[1]:
                truth[name][row[node], slot] = score
    label = f"the store's cluster: {len(cluster.nodes)} nodes, {int(cluster.exists.sum())} GPUs"
    measured = "measured on these GPUs" if truth else "none: no GPU was measured"
    return SimulatedSite(cluster, truth, label, measured)


def bin_all(scores: Mapping[str, FloatArray], exists: BoolArray) -> dict[str, FloatArray]:
    """(N, W) binned scores of every class over the GPUs that exist (PAL)."""
    return {
        name: on_gpus(bin_scores(values[exists]).scores, exists) for name, values in scores.items()
    }


def with_scores(base: SimulatedSite, draw: Draw) -> SimulatedSite:
    """The site with drawn scores; a class that is not in the draw keeps its own."""
    scores = {**base.cluster.scores, **bin_all(draw.scores, base.cluster.exists)}
    cluster = replace(base.cluster, scores=scores)
    return SimulatedSite(cluster, {**base.truth, **draw.scores}, base.label, draw.how)
