"""Physics of a simulation: the slowdown of a job on its GPUs and beside its neighbours.

slowdown = L x max V (PAL, eq. 1) x bandwidth factor, each part switchable. The bandwidth factor of
a sensitive job with communication share c is (1 - c) + c best/have: the slowest link sets the time
of communication only. Interference is a further factor that changes with the neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.account import level_of, predicted_slowdown
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import eff_table, match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT

__all__ = ["Physics", "bandwidth_ratio", "expected_worst"]


class Physics:
    """Slowdown of a job on GPUs; ``cluster`` has the true scores, not the planner's bins."""

    def __init__(self, cluster: Cluster, settings: SimSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self._plain = replace(cluster, indexed=np.zeros(len(cluster.nodes), dtype=np.bool_))
        """The cluster without GPU indices."""

    def slowdown(
        self, job: TraceJob, nodes: Sequence[int], slots: Sequence[tuple[int, ...]]
    ) -> float:
        """t_iter / t_orig >= 0 of ``job`` on the slots of each node, without interference."""
        score, _, both = predicted_slowdown(self.cluster, job.app_class, nodes, slots)
        ratios = [
            bandwidth_ratio(graph, own, job.pattern)
            for node, own in zip(nodes, slots, strict=True)
            if (graph := self._graph(job, node)) is not None
        ]
        return self._product(job, score, both / score, ratios)

    def expected(self, job: TraceJob, nodes: Sequence[int]) -> float:
        """Expected slowdown of ``job`` if every set of GPUs on these nodes is equally likely.

        Each node gives gpus / nodes GPUs, rounded up, independently of the others.
        """
        each = -(-job.gpus // len(nodes))
        scores = self.cluster.score(job.app_class)
        worst = expected_worst([scores[n][self.cluster.exists[n]] for n in nodes], each)
        level = level_of(self._plain, nodes, [()] * len(nodes))
        locality = level.of(job.app_class).value
        ratios = [
            _mean_ratio(graph, each, job.pattern)
            for node in nodes
            if (graph := self._graph(job, node)) is not None
        ]
        return self._product(job, worst, locality, ratios)

    def interference(self, job: TraceJob, others: Sequence[TraceJob]) -> float:
        """Slowdown >= 1 of ``job`` beside ``others`` on its machines (Amaral et al., SC'17, 3.2).

        Only pairs are measured, so the excess over 1 of each neighbour is added. A pair without a
        measurement, or with a measured gain (noise), does not count.
        """
        profile = self.settings.interference
        if profile is None:
            return 1.0
        own = (job.model or "", job.gpus)
        pairs = (profile.slowdown(own, (other.model or "", other.gpus)) for other in others)
        return 1.0 + sum((ratio - 1.0 for ratio in pairs if ratio is not None), 0.0)

    def _graph(self, job: TraceJob, node: int) -> HardwareGraph | None:
        """Links of a node; None: the job is not sensitive to them, or they are not known."""
        if self._share(job) is None or not job.bandwidth_sensitive or not self.cluster.graphs:
            return None
        return self.cluster.graphs[node]

    def _share(self, job: TraceJob) -> float | None:
        """Communication share of the job; None while bandwidth is switched off."""
        general, own = self.settings.communication_share, job.communication_share
        return general if general is None or own is None else own

    def _product(
        self, job: TraceJob, score: float, locality: float, ratios: Sequence[float]
    ) -> float:
        """Product of the factors that are switched on; the node with the slowest links counts."""
        factor = score if self.settings.variability else 1.0
        if self.settings.locality:
            factor *= locality
        share = self._share(job)
        if share is None or not ratios:
            return float(factor)
        return float(factor) * ((1.0 - share) + share * max(1.0, *ratios))


def expected_worst(rows: Sequence[FloatArray], k: int) -> float:
    """Expected largest score of ``k`` random GPUs of each row (all GPUs of a shorter row).

    Sum over scores v of v P(max = v), where P(max <= v) is the product over the rows of
    C(number <= v, k) / C(n, k). A score that is not finite counts as 1.
    """
    clean = [np.where(np.isfinite(row), row, 1.0) for row in rows]
    values = np.unique(np.concatenate(clean))
    below = np.ones(len(values))
    for row in clean:
        take = min(k, len(row))
        counts = np.searchsorted(np.sort(row), values, side="right")
        below *= [math.comb(int(c), take) / math.comb(len(row), take) for c in counts]
    return float(np.dot(values, np.diff(below, prepend=0.0)))


@lru_cache(maxsize=1 << 16)
def bandwidth_ratio(graph: HardwareGraph, slots: tuple[int, ...], pattern: str) -> float:
    """EffBW of the best set of this size / EffBW of this set; 1.0 without links or tables."""
    shape = parse_pattern(pattern)
    if graph.n > MAX_EXACT or not shape.has_edges(len(slots)):
        return 1.0
    have = match(graph, slots, shape, BOTTLENECK).eff_gbps
    best = float(eff_table(graph, shape, len(slots), BOTTLENECK).max())
    return best / have if have > 0 else 1.0


@lru_cache(maxsize=4096)
def _mean_ratio(graph: HardwareGraph, k: int, pattern: str) -> float:
    """Mean of :func:`bandwidth_ratio` over all sets of ``k`` GPUs of the machine."""
    shape = parse_pattern(pattern)
    if graph.n > MAX_EXACT or k > graph.n or not shape.has_edges(k):
        return 1.0
    have = eff_table(graph, shape, k, BOTTLENECK)
    linked = have > 0
    ratios = np.ones(len(have))
    ratios[linked] = have.max() / have[linked]
    return float(ratios.mean())
