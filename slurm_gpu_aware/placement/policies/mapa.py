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
from typing import Any, ClassVar

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import MOST_NODES, assignment, cells_tried
from slurm_gpu_aware.placement.cells import Cell, first_cell
from slurm_gpu_aware.placement.drb.bipartition import choose_by_sockets
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

_RULES: dict[Objective, tuple[str, str]] = {
    "effbw": ("the fastest links between them (EffBW)", "effbw_gbps"),
    "aggbw": ("the largest sum of links between them (AggBW)", "aggbw_gbps"),
    "preserved": (
        "the least taken from the links of others (PreservedBW)",
        "preservedbw_change_gbps",
    ),
}
"""Objective -> the rule in words, and the key of its values in the account."""
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


def links_account(
    cell: Cell, choice: Choice, goal: Goal, *, by_links: bool = True
) -> dict[str, Any]:
    """MAPA's part of the account: the three bandwidths of the chosen set. GB/s.

    On a plain node they are those of the worst set that Slurm may choose (``worst``). Totals need
    measured links on every node. ``by_links``: the links decided.
    """
    cluster, request = cell.supply.cluster, cell.supply.request
    nodes: list[dict[str, Any]] = []
    in_part = by_links and compared_in_part(cell, choice, goal)
    models = {goal.model_of(graph_of(cluster, node)).name for node in choice.nodes}
    for node, slots in zip(choice.nodes, choice.slots, strict=True):
        graph, free = graph_of(cluster, node), int(cell.supply.free[node])
        entry: dict[str, Any] = {
            "node": cluster.nodes[node],
            "measured": bool(cluster.graphs) and cluster.graphs[node] is not None,
        }
        if not cluster.indexed[node] and not request.nodes.whole:
            slots = slots_of(worst_set(graph, free, free, len(slots), goal).promised)
            entry["worst"] = list(slots)
        left = _kept(graph, free & ~mask_of(slots))
        entry["preservedbw_gbps"] = round(left, 3)
        entry["taken_gbps"] = round(_kept(graph, free) - left, 3)
        if len(slots) <= MAX_EXACT:
            by_sum = goal.objective == "aggbw"
            found = match(graph, slots, goal.pattern, goal.model_of(graph), by_sum=by_sum)
            entry |= {
                "effbw_gbps": round(found.eff_gbps, 3),
                "aggbw_gbps": round(found.agg_gbps, 3),
                "order": [list(order) for order in found.order],
                "links_gbps": [round(link, 3) for link in found.links_gbps],
            }
            in_part |= not found.exact
        nodes.append(entry)
    account: dict[str, Any] = {
        "objective": goal.objective,
        "pattern": request.pattern,
        "bandwidth_sensitive": request.bandwidth_sensitive,
        "effbw_model": ", ".join(sorted(models)),
        "links": nodes[:MOST_NODES],
    }
    if in_part:
        account["embeddings"] = "searched in part"
    if all(entry["measured"] for entry in nodes):
        if all("effbw_gbps" in entry for entry in nodes):
            account["effbw_gbps"] = min(entry["effbw_gbps"] for entry in nodes)
            account["aggbw_gbps"] = round(sum(entry["aggbw_gbps"] for entry in nodes), 3)
        account["preservedbw_gbps"] = round(sum(entry["preservedbw_gbps"] for entry in nodes), 3)
    return account


def links_rule(choice: Choice, goal: Goal, account: dict[str, Any]) -> tuple[str, str]:
    """Rule with ties and missing measurements, and the key of its values.

    ``account``: with the bandwidths.
    """
    first, key = _RULES[goal.objective]
    parts = [first]
    if choice.sets is not None:
        parts[0] += f" of {choice.sets} sets" if choice.sets != 1 else " (the only set)"
    if choice.ties > 1:
        parts.append(f"the first of {choice.ties} equal ones")
    if "embeddings" in account:
        parts.append("layouts of this pattern searched in part")
    if "preservedbw_gbps" not in account:
        parts.append("links not measured")
    if any("worst" in entry for entry in account["links"]):
        parts.append("at worst: Slurm chooses the GPUs")
    return ", ".join(parts), key


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
        choice = ByLinks(goal).choose(cell)
        links = links_account(cell, choice, goal)
        rule, by = links_rule(choice, goal, links)
        why = {**self.account(cell), **links}
        return assignment(self.name, cell, choice, why=why, rule=rule, by=by)

    def cell(self, request: Request, cluster: Cluster) -> Cell | None:
        """Return the cell to choose from."""
        return _one_node_first(request, cluster)

    def account(self, cell: Cell) -> dict[str, Any]:
        """Return the account of the cell."""
        return {}


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

    def account(self, cell: Cell) -> dict[str, Any]:
        return cells_tried(cell)


class MapaBaseline(Policy):
    """MAPA's baseline: the lowest free indices of the first node with room."""

    name = "mapa-baseline"
    rule: ClassVar[str] = "the lowest free indices"

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        goal = goal_for(request, BOTTLENECK)
        cell = _one_node_first(request, cluster)
        if cell is None:
            return None
        choice = self.choose(cell)
        why = {**links_account(cell, choice, goal, by_links=False), "objective": "none"}
        return assignment(self.name, cell, choice, why=why, rule=self.rule)

    def choose(self, cell: Cell) -> Choice:
        return ByScores(best_fit=False).choose(cell)


class MapaTopoAware(MapaBaseline):
    """MAPA's topology-aware comparison: recursive bipartition, the same socket first."""

    name = "mapa-topo-aware"
    rule = "the same socket first"

    def choose(self, cell: Cell) -> Choice:
        return choose_by_sockets(cell)
