"""Answer of one policy to one request: a placement with its bandwidths, or the reason for none."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.later import ExpectedEnds, better_later
from slurm_gpu_aware.planning.postponing import weighed_words, with_bound
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, preserved_bw
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class Answer:
    """Placement of one policy, and its bandwidths."""

    policy: str
    assignment: Assignment | None  # None: nothing fits, or the policy postpones the job.
    reason: str = ""  # Reason for no assignment; one sentence without a full stop.
    postponed: bool = False  # GPUs that fit are free, but the job waits for better ones.
    nodes: tuple[str, ...] = ()
    agg_gbps: float | None = None
    """AggBW (MAPA, eq. 1) of the best embedding, sum over nodes. None: links not known."""
    eff_gbps: float | None = None  # EffBW of the slowest node, bottleneck model.
    preserved_gbps: float | None = None
    """PreservedBW (eq. 3): links among the GPUs that stay free on the used nodes."""
    links: tuple[tuple[Pair, ...], ...] = ()
    """Pairs of slots in the best embedding, per node; empty: links not known."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; without an assignment ``place`` is None and ``reason`` is set.

        The GPUs of a node in ``place`` are None where Slurm chooses them.
        """
        assignment, plain = self.assignment, {"policy": self.policy, "place": None}
        if assignment is None:
            return {**plain, "postponed": self.postponed, "reason": self.reason}
        return {
            **plain,
            "place": {
                n: list(s) if assignment.exact else None
                for n, s in zip(self.nodes, assignment.slots, strict=True)
            },
            "exact": assignment.exact,
            "level": assignment.level,
            "score": assignment.score,
            "slowdown": assignment.slowdown,
            "agg_gbps": self.agg_gbps,
            "eff_gbps": self.eff_gbps,
            "preserved_gbps": self.preserved_gbps,
            "why": assignment.why.plain(),
            "words": assignment.why.lines(),
        }


def ask_policy(
    name: str, request: Request, cluster: Cluster, options: Mapping[str, Any], now: float
) -> Answer:
    """Ask one policy at the time ``now``, on the clock of the running jobs' ends.

    Raises PolicyError for an unknown one.
    """
    policy = make_policy(name, options)
    assignment = policy.place(request, cluster)
    if assignment is None:
        postponed = policy.postpones(request, cluster)
        return Answer(name, None, policy.why_not(request, cluster).text, postponed)
    ends = ExpectedEnds(cluster.running, now)
    if later := better_later(request, assignment, cluster, ends, now, policy):
        return Answer(name, None, weighed_words(later, cluster), postponed=True)
    assignment = with_bound(assignment, request, cluster, now, policy.wait_rule())
    answer = Answer(name, assignment, nodes=tuple(cluster.nodes[i] for i in assignment.nodes))
    pattern = parse_pattern(request.pattern)
    agg, eff, preserved = 0.0, float("inf"), 0.0
    used: list[tuple[Pair, ...]] = []
    for node, slots in assignment.gpus:
        graph = cluster.graphs[node] if cluster.graphs else None
        if graph is None or graph.n > MAX_EXACT or not assignment.exact:
            return answer
        best = match(graph, slots, pattern, BOTTLENECK)
        agg += best.agg_gbps
        eff = min(eff, best.eff_gbps)
        free = mask_of(np.flatnonzero(cluster.free[node]).tolist())
        preserved += float(preserved_bw(graph, free, mask_of(slots)))
        used.append(best.pairs(request.pattern))
    return replace(answer, agg_gbps=agg, eff_gbps=eff, preserved_gbps=preserved, links=tuple(used))
