"""How fast a job really runs where it was put.

slowdown = L x max V (PAL, eq. 1) x bandwidth factor, each part switchable. The bandwidth factor of
a sensitive job with communication share c is (1 - c) + c best/have: communication takes as long as
its slowest link makes it, the rest of the job does not notice. Interference changes with the
neighbours and is added by the engine.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.cluster import Cluster
from slurm_gpu_aware.placement.evaluate import predicted_slowdown
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.graph import HardwareGraph
from slurm_gpu_aware.topology.matching import eff_table, match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT

__all__ = ["Physics", "bandwidth_ratio"]


class Physics:
    """Slowdown of a job on a set of GPUs.

    ``cluster`` carries the true per-GPU scores, not the planner's bins.
    """

    def __init__(self, cluster: Cluster, settings: SimSettings) -> None:
        self.cluster = cluster
        self.settings = settings

    def slowdown(self, job: TraceJob, placed: Assignment) -> float:
        """t_iter / t_orig >= 0 of ``job`` on the GPUs of ``placed``, neighbours aside."""
        score, _, both = predicted_slowdown(self.cluster, job.app_class, placed.nodes, placed.slots)
        locality = both / score
        factor = 1.0
        if self.settings.variability:
            factor *= score
        if self.settings.locality:
            factor *= locality
        return float(np.float64(factor)) * self._bandwidth(job, placed)

    def _bandwidth(self, job: TraceJob, placed: Assignment) -> float:
        """Factor of a sensitive job's links; its slowest node counts."""
        share = job.communication_share
        if share is None:
            share = self.settings.communication_share
        if share is None or self.settings.communication_share is None:
            return 1.0
        if not job.bandwidth_sensitive or not self.cluster.graphs:
            return 1.0
        worst = 1.0
        for node, slots in zip(placed.nodes, placed.slots, strict=True):
            graph = self.cluster.graphs[node]
            if graph is not None:
                worst = max(worst, bandwidth_ratio(graph, slots, job.pattern))
        return (1.0 - share) + share * worst


@lru_cache(maxsize=1 << 16)
def bandwidth_ratio(graph: HardwareGraph, slots: tuple[int, ...], pattern: str) -> float:
    """EffBW of the best set of this size on the machine / EffBW of this set; >= 1.

    Bottleneck model. 1.0 for sets without communication and machines too large for tables.
    """
    shape = parse_pattern(pattern)
    if graph.n > MAX_EXACT or not shape.has_edges(len(slots)):
        return 1.0
    have = match(graph, slots, shape, BOTTLENECK).eff_gbps
    best = float(eff_table(graph, shape, len(slots), BOTTLENECK).max())
    return best / have if have > 0 else 1.0
