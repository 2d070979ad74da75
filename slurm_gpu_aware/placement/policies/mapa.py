"""MAPA: placement by the links between GPUs (Ranganath et al., SC'21, section 4).

============== =====================================================================
mapa-greedy    the set with the largest AggBW (eq. 1)
mapa-preserve  bandwidth-sensitive jobs: the largest EffBW (eq. 2 or the default
               model); others: the largest PreservedBW (eq. 3)
mapa-baseline  the lowest free indices of the first node with room
mapa-topo-aware  recursive bipartition: same socket first (``drb.bipartition``)
pal+mapa       PAL chooses the cell, mapa-preserve the GPUs inside it
============== =====================================================================

MAPA places within one machine. In a cluster the same values choose the node, then best fit, then
the lowest index; jobs larger than a node take the fewest nodes (see ``selection.by_links``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from msgspec import structs

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import MOST_NODES, assignment, cells_tried
from slurm_gpu_aware.placement.cells import Cell, first_cell
from slurm_gpu_aware.placement.drb.bipartition import choose_by_sockets
from slurm_gpu_aware.placement.facts import Links, NodeLinks, Rule
from slurm_gpu_aware.placement.feasible import Supply
from slurm_gpu_aware.placement.level_views import flat_table, two_levels
from slurm_gpu_aware.placement.policies.pal import best_cell
from slurm_gpu_aware.placement.policy import Policy, PolicyOptions
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.by_links import ByLinks, compared_in_part
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.selection.links import Goal, Objective, graph_of, worst_set
from slurm_gpu_aware.placement.shapes import splits
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, PAPER, EffBwModel, eq2_model
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of, slots_of

_VALUES: dict[Objective, str] = {
    "effbw": "effbw_gbps",
    "aggbw": "aggbw_gbps",
    "preserved": "preservedbw_change_gbps",
}
"""Objective -> what is compared."""
_pattern = lru_cache(maxsize=256)(parse_pattern)


@dataclass(frozen=True)
class LinkOptions(PolicyOptions):
    """Options of policies that compare sets by EffBW."""

    effbw: str | Sequence[float] = "bottleneck"
    """Model of EffBW: ``bottleneck``, ``paper``, or the 14 coefficients of a refit of eq. 2."""

    def __post_init__(self) -> None:
        try:
            _ = self.model
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                "effbw must be bottleneck, paper or the 14 coefficients of eq. 2, "
                f"not {self.effbw!r}"
            ) from None

    @cached_property
    def model(self) -> EffBwModel:
        """The model that ``effbw`` names."""
        named = {"bottleneck": BOTTLENECK, "paper": PAPER}
        return named[self.effbw] if isinstance(self.effbw, str) else eq2_model(self.effbw)


def goal_for(request: Request, model: EffBwModel, objective: Objective | None = None) -> Goal:
    """The goal; without objective EffBW for sensitive jobs that communicate, else PreservedBW."""
    pattern = _pattern(request.pattern)
    if objective is None:
        communicates = pattern.has_edges(request.gpus)
        objective = "effbw" if request.bandwidth_sensitive and communicates else "preserved"
    return Goal(objective, pattern, model)


@lru_cache(maxsize=1 << 14)
def _kept(graph: HardwareGraph, gpus: int) -> float:
    """Sum of the links among the GPUs of a mask (eq. 3)."""
    slots = slots_of(gpus)
    return float(graph.gbps[np.ix_(slots, slots)].sum()) / 2


def links_of(cell: Cell, choice: Choice, goal: Goal, *, by_links: bool = True) -> Links:
    """MAPA's three bandwidths of the chosen set. GB/s.

    On a plain node they are those of the worst set that Slurm may choose (``worst``). Totals need
    measured links on every node. ``by_links``: the links decided.
    """
    cluster, request = cell.supply.cluster, cell.supply.request
    nodes: list[NodeLinks] = []
    in_part = by_links and compared_in_part(cell, choice, goal)
    models = {goal.model_of(graph_of(cluster, node)).name for node in choice.nodes}
    for node, slots in zip(choice.nodes, choice.slots, strict=True):
        graph, free = graph_of(cluster, node), int(cell.supply.free[node])
        worst: tuple[int, ...] = ()
        if not cluster.indexed[node] and not request.nodes.whole:
            slots = worst = slots_of(worst_set(graph, free, free, len(slots), goal).promised)
        left = _kept(graph, free & ~mask_of(slots))
        entry = NodeLinks(
            cluster.nodes[node],
            measured=bool(cluster.graphs) and cluster.graphs[node] is not None,
            preservedbw_gbps=round(left, 3),
            taken_gbps=round(_kept(graph, free) - left, 3),
            worst=worst,
        )
        if len(slots) <= MAX_EXACT:
            by_sum = goal.objective == "aggbw"
            found = match(graph, slots, goal.pattern, goal.model_of(graph), by_sum=by_sum)
            entry = structs.replace(
                entry,
                effbw_gbps=round(found.eff_gbps, 3),
                aggbw_gbps=round(found.agg_gbps, 3),
                order=tuple(map(tuple, found.order)),
                links_gbps=tuple(round(link, 3) for link in found.links_gbps),
            )
            in_part |= not found.exact
        nodes.append(entry)
    measured = all(entry.measured for entry in nodes)
    matched = [(one.effbw_gbps, one.aggbw_gbps) for one in nodes if measured]
    known = [(eff, agg) for eff, agg in matched if eff is not None and agg is not None]
    whole = measured and len(known) == len(nodes)
    return Links(
        links=tuple(nodes[:MOST_NODES]),
        objective=goal.objective if by_links else "none",
        pattern=request.pattern,
        bandwidth_sensitive=request.bandwidth_sensitive,
        effbw_model=", ".join(sorted(models)),
        in_part=in_part,
        effbw_gbps=min(eff for eff, _ in known) if whole else None,
        aggbw_gbps=round(sum(agg for _, agg in known), 3) if whole else None,
        preservedbw_gbps=round(sum(e.preservedbw_gbps for e in nodes), 3) if measured else None,
    )


def by_best_links(policy: str, cell: Cell, goal: Goal, *facts: Fact) -> Assignment:
    """The assignment of the set of a cell that is the best by its links."""
    choice = ByLinks(goal).choose(cell)
    links = links_of(cell, choice, goal)
    return assignment(policy, cell, choice, *facts, links, by=_VALUES[goal.objective])


def _one_node_first(request: Request, cluster: Cluster) -> Cell | None:
    """The cell with the fewest nodes: MAPA uses neither scores nor network levels."""
    supply = Supply(request, cluster, flat_table(cluster))
    return first_cell(supply, two_levels(cluster), splits(request, cluster))


class LinkPolicy(Policy):
    """A policy that chooses by links inside the cell of a subclass."""

    options_type = LinkOptions
    options: LinkOptions
    objective: ClassVar[Objective | None] = None

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        goal = goal_for(request, self.options.model, self.objective)
        cell = self.cell(request, cluster)
        if cell is None:
            return None
        return by_best_links(self.name, cell, goal, *self.facts(cell))

    def cell(self, request: Request, cluster: Cluster) -> Cell | None:
        """Return the cell to choose from."""
        return _one_node_first(request, cluster)

    def facts(self, cell: Cell) -> tuple[Fact, ...]:
        """Return what is said of the cell."""
        return ()


class MapaGreedy(LinkPolicy):
    """The set of GPUs, and the embedding of the pattern, with the largest AggBW."""

    name = "mapa-greedy"
    objective = "aggbw"


class MapaPreserve(LinkPolicy):
    """Bandwidth-sensitive jobs get the best links, others preserve links for later jobs."""

    name = "mapa-preserve"


class PalMapa(LinkPolicy):
    """PAL chooses the cell, ``mapa-preserve`` the GPUs inside it; the selector's default.

    For PAL all sets of a cell are equal, so the predicted slowdown is that of ``pal``.
    """

    name = "pal+mapa"
    by_levels = True

    def cell(self, request: Request, cluster: Cluster) -> Cell | None:
        return best_cell(request, cluster)

    def facts(self, cell: Cell) -> tuple[Fact, ...]:
        return (cells_tried(cell),)


class MapaBaseline(Policy):
    """MAPA's baseline: the lowest free indices of the first node with room."""

    name = "mapa-baseline"

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        goal = goal_for(request, BOTTLENECK)
        cell = _one_node_first(request, cluster)
        if cell is None:
            return None
        choice = self.choose(cell)
        links = links_of(cell, choice, goal, by_links=False)
        return assignment(self.name, cell, choice, Rule(self.name), links)

    def choose(self, cell: Cell) -> Choice:
        return ByScores(best_fit=False).choose(cell)


class MapaTopoAware(MapaBaseline):
    """MAPA's topology-aware comparison: recursive bipartition, the same socket first."""

    name = "mapa-topo-aware"

    def choose(self, cell: Cell) -> Choice:
        return choose_by_sockets(cell)
