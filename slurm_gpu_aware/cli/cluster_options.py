"""A cluster and a request from options, and what a set of GPUs is worth: the work of ``place``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, quoted
from slurm_gpu_aware.cli.output import paragraph, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.profile import Profile, gpu_names, seen_only
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.names import NODE_NAME
from slurm_gpu_aware.placement.registry import make_policy
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, preserved_bw
from slurm_gpu_aware.topology.locality import build_levels, with_levels
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import Match, match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of

__all__ = ["Answer", "answer", "given_cluster", "mark_busy", "stored_cluster"]

_BUSY = re.compile(rf"({NODE_NAME}):([0-9]{{1,4}}(?:,[0-9]{{1,4}})*)\Z")


@dataclass(frozen=True)
class Answer:
    """What one policy picks, and what it is worth."""

    policy: str
    assignment: Assignment | None
    """None: nothing fits, or the policy postpones the job."""
    reason: str = ""
    """Why there is no assignment; one sentence without a full stop."""
    postponed: bool = False
    """GPUs that fit are free, but the policy lets the job wait for better ones."""
    nodes: tuple[str, ...] = ()
    agg_gbps: float | None = None
    """AggBW (MAPA, eq. 1) of the best embedding; summed over nodes. None: links not known."""
    eff_gbps: float | None = None
    """EffBW, bottleneck model; of the slowest node."""
    preserved_gbps: float | None = None
    """PreservedBW (eq. 3): links among the GPUs that stay free on the nodes used."""
    links: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Pairs of slots that the best embedding uses, per node; empty: links not known."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; ``place`` None with the ``reason`` if there is none."""
        found = self.assignment
        if found is None:
            return {
                "policy": self.policy,
                "place": None,
                "postponed": self.postponed,
                "reason": self.reason,
            }
        return {
            "policy": self.policy,
            "place": {n: list(s) for n, s in zip(self.nodes, found.slots, strict=True)},
            "exact": found.exact,
            "level": found.level,
            "score": found.score,
            "slowdown": found.slowdown,
            "agg_gbps": self.agg_gbps,
            "eff_gbps": self.eff_gbps,
            "preserved_gbps": self.preserved_gbps,
            "why": dict(found.why),
        }


def stored_cluster(profile: Profile, config: Config) -> Cluster:
    """The profiled nodes, all idle, with the levels of Slurm's network that are in use.

    GPUs of which only times were imported are left out, with a word, where others were probed.
    Raises RequestError if nothing was ever profiled.
    """
    profile, left_out = seen_only(profile)
    if left_out:
        say(paragraph(f"Left out, because no sweep has seen them: {gpu_names(left_out)}."))
    names = sorted({node for node, _ in profile.gpus}, key=_natural)
    if not names:
        raise RequestError(
            "the store has no GPUs; run 'gpu-aware-profile sweep', or give --machine"
        )
    for node, slot in profile.gpus:
        if slot >= MAX_GPUS_PER_NODE:  # an earlier release imported it
            gpu, most = f"{node}:{slot}", MAX_GPUS_PER_NODE - 1
            raise RequestError(
                f"the store has GPU {gpu}, but indices end at {most}: remove it with"
                f" 'gpu-aware-profile forget {gpu}'"
            )
    slots_of = {n: [s for node, s in profile.gpus if node == n] for n in names}
    width = 1 + max(max(slots) for slots in slots_of.values())
    exists = np.zeros((len(names), width), dtype=np.bool_)
    numa = np.full((len(names), width), -1, dtype=np.int64)
    scores = {c: np.ones((len(names), width)) for c in profile.scores}
    models: list[str | None] = []
    graphs: list[HardwareGraph | None] = []
    for row, name in enumerate(names):
        exists[row, slots_of[name]] = True
        for app_class, known in profile.scores.items():
            for slot in slots_of[name]:
                scores[app_class][row, slot] = known.get((name, slot), 1.0)
        for slot in slots_of[name]:
            node_of = profile.gpus[name, slot].numa
            numa[row, slot] = -1 if node_of is None else node_of
        kinds = {profile.gpus[name, slot].model for slot in slots_of[name]}
        models.append(kinds.pop() if len(kinds) == 1 else None)
        graphs.append(_graph(profile, name, width))
    n = len(names)
    penalties = config.placement.penalties_with(profile.level_ratios)
    network = _network_groups(config, penalties.general)
    return Cluster(
        nodes=tuple(names),
        exists=exists,
        free=exists.copy(),
        scores=scores,
        levels=build_levels(penalties, names, width, numa=numa, graphs=graphs, network=network),
        free_cpus=np.full(n, 1 << 20, dtype=np.int64),
        free_memory_mb=np.full(n, 1 << 40, dtype=np.int64),
        indexed=np.ones(n, dtype=np.bool_),
        model=tuple(models),
        graphs=tuple(graphs) if any(g is not None for g in graphs) else (),
    )


def _network_groups(config: Config, used: Collection[str]) -> dict[str, dict[str, str]]:
    """Level -> node -> group of Slurm's network, if one of its levels is among ``used``.

    Without an answer none, and a word about it.
    """
    from slurm_gpu_aware.model.penalties import NETWORK_LEVELS

    wanted = [name for name in NETWORK_LEVELS if name in used]
    if not wanted:
        return {}
    from slurm_gpu_aware.slurm.client import open_client
    from slurm_gpu_aware.slurm.topology import network_groups

    try:
        found = network_groups(
            open_client(config.selector.command_timeout_s).topology(), NETWORK_LEVELS
        )
    except SourceError as exc:
        say(paragraph(f"The network's levels are left out: {exc}."))
        return {}
    lacking = [name for name in wanted if name not in found]
    if lacking:
        say(f"Slurm's topology has no level {', '.join(lacking)}; locality counts without it.")
    return found


def _graph(profile: Profile, node: str, width: int) -> HardwareGraph | None:
    links = profile.links.get(node)
    if not links:
        return None
    records = {slot: r for (name, slot), r in profile.gpus.items() if name == node}
    numa = [records[s].numa if s in records else None for s in range(width)]
    groups = [n if n is not None and n >= 0 else 0 for n in numa]
    return HardwareGraph.from_links(
        [(link.a, link.b, link.link_class, link.gbps) for link in links], n=width, groups=groups
    )


def given_cluster(name: str, nodes: int, config: Config) -> Cluster:
    """``nodes`` idle machines of a known kind, all GPUs equal. Raises RequestError."""
    try:
        graph = machine(name)
    except ValueError as exc:
        raise RequestError(str(exc)) from None
    cluster = Cluster.uniform([f"n{i + 1}" for i in range(nodes)], graph.n, graph=graph)
    return with_levels(cluster, config.placement.penalties)


def mark_busy(cluster: Cluster, busy: Iterable[str]) -> Cluster:
    """The cluster with GPUs taken: ``n1:0,3``. Raises RequestError for what is not there."""
    taken = cluster.copy()
    for text in busy:
        match_ = _BUSY.match(text)
        if match_ is None:
            raise RequestError(f"{quoted(text)} does not name GPUs; expected NODE:0,3")
        name, slots = match_.group(1), [int(s) for s in match_.group(2).split(",")]
        if name not in cluster.nodes:
            raise RequestError(f"no node {name!r}; known: {_some(cluster.nodes)}")
        row = cluster.nodes.index(name)
        there = [s for s in range(cluster.shape[1]) if cluster.exists[row, s]]
        wrong = [s for s in slots if s not in there]
        if wrong:
            raise RequestError(f"{name} has no GPU {wrong[0]}; it has {', '.join(map(str, there))}")
        taken.take(row, [s for s in dict.fromkeys(slots) if taken.free[row, s]])
    return taken


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def answer(policy: str, request: Request, cluster: Cluster, options: Mapping[str, Any]) -> Answer:
    """Ask one policy. Raises PolicyError for an unknown one."""
    asked = make_policy(policy, options)
    found = asked.place(request, cluster)
    if found is None:
        postponed = asked.postpones(request, cluster)
        return Answer(policy, None, asked.why_not(request, cluster).text, postponed)
    nodes = tuple(cluster.nodes[i] for i in found.nodes)
    return _with_links(Answer(policy, found, nodes=nodes), found, request, cluster)


def _with_links(base: Answer, found: Assignment, request: Request, cluster: Cluster) -> Answer:
    """The answer with bandwidths inside its nodes; as it is where links are not known."""
    pattern = parse_pattern(request.pattern)
    agg, eff, preserved = 0.0, float("inf"), 0.0
    used: list[tuple[tuple[int, int], ...]] = []
    for node, slots in zip(found.nodes, found.slots, strict=True):
        graph = cluster.graphs[node] if cluster.graphs else None
        if graph is None or graph.n > MAX_EXACT or not found.exact:
            return base
        best = match(graph, slots, pattern, BOTTLENECK)
        agg += best.agg_gbps
        eff = min(eff, best.eff_gbps)
        free = mask_of([int(s) for s in np.flatnonzero(cluster.free[node])])
        preserved += float(preserved_bw(graph, free, mask_of(slots)))
        used.append(_pairs(best, request.pattern))
    return replace(base, agg_gbps=agg, eff_gbps=eff, preserved_gbps=preserved, links=tuple(used))


def _pairs(best: Match, pattern: str) -> tuple[tuple[int, int], ...]:
    """Slots that talk to each other, each pair once."""
    found: set[tuple[int, int]] = set()
    for order, name in zip(best.order, pattern.split("+"), strict=True):
        for a, b in parse_pattern(name).edges_for(len(order)):
            pair = sorted((order[a], order[b]))
            found.add((pair[0], pair[1]))
    return tuple(sorted(found))


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = (p for p in re.split(r"(\d+)", name) if p)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]
