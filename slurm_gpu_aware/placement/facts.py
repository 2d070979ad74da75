"""Facts that several policies and the constraints state, and their words."""

from typing import Literal

from msgspec import Struct

from slurm_gpu_aware.model.facts import Fact

_RULES = {
    "best-fit": "the fullest node with room",
    "lowest-index": "the first node with room, its lowest free indices",
    "mapa-baseline": "the lowest free indices",
    "mapa-topo-aware": "GPUs of one socket first",
    "packed": "GPUs close together, on the fullest node with room",
    "pm-first": "the fastest free GPUs, however far apart",
}
_LINKS = {
    "effbw": "the fastest links between them (EffBW)",
    "aggbw": "the largest sum of links between them (AggBW)",
    "preserved": "the fast links stay free for other jobs (PreservedBW)",
}


class Rule(Fact, frozen=True):
    """A policy whose rule has no numbers."""

    key = "rule"

    policy: str  # Registry name.

    def words(self) -> str:
        return _RULES.get(self.policy, "")


class ChosenNode(Struct, frozen=True, omit_defaults=True):
    """What is taken of a node. Slurm chooses the GPUs: only their number is known."""

    node: str
    left_free: int
    slots: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()  # Parallel to ``slots``.
    gpus: int | None = None


class ConsideredSet(Struct, frozen=True):
    """A set of GPUs of one node that was compared."""

    node: str
    slots: tuple[int, ...]
    value: float  # Compared value.


class Chosen(Fact, frozen=True, rename={"app_class": "class"}):
    """The chosen set and the candidates."""

    key = "chosen"

    nodes: tuple[ChosenNode, ...]
    by: str  # What `ConsideredSet.value` is: a score, or a bandwidth in GB/s.
    app_class: str | None = None
    penalty_from: str = ""  # Where the penalty of the level comes from; empty: configured.
    candidate_nodes: int = 0
    candidate_sets: int | None = None  # None: not counted.
    ties: int = 1  # Candidates equal to the chosen one except for the index.
    considered: tuple[ConsideredSet, ...] = ()
    cut: str = ""  # Words on the part that was not compared; empty: none.

    def words(self) -> str:
        if self.by == "mean_score":
            return self.cut
        parts = []
        if self.candidate_sets is not None:
            many = self.candidate_sets > 1
            parts.append(f"the best of {self.candidate_sets} sets" if many else "the only set")
        if self.ties > 1:
            parts.append(f"the first of {self.ties} equal ones")
        return "; ".join(filter(None, (", ".join(parts), self.cut)))


class TriedCell(Struct, frozen=True, rename={"score": "V", "product": "LxV"}):
    """A combination of a locality level and a worst score."""

    level: str
    score: float
    product: float  # Slowdown.
    found: bool  # Whether it holds a set.


class Cells(Fact, frozen=True):
    """The combinations that the search tested, and the least slowdown at which a set was found."""

    key = "cells"

    cells: tuple[TriedCell, ...]
    tried: int = 0  # All of them.
    several_nodes: bool = False  # Only sets of several nodes were searched.

    def words(self) -> str:
        where = " over several nodes" if self.several_nodes else ""
        tried = f", {self.tried} combinations tried" if self.tried > 1 else ""
        return f"the least slowdown by distance and slowest GPU{where}{tried}"


class NodeLinks(Struct, frozen=True, omit_defaults=True):
    """Bandwidths of the chosen GPUs of a node. Units: GB/s; None: not known."""

    node: str
    measured: bool
    preservedbw_gbps: float
    taken_gbps: float
    worst: tuple[int, ...] = ()  # The worst set that Slurm may choose.
    effbw_gbps: float | None = None
    aggbw_gbps: float | None = None
    order: tuple[tuple[int, ...], ...] = ()  # Of the GPUs along the pattern.
    links_gbps: tuple[float, ...] = ()


class Links(Fact, frozen=True):
    """MAPA's bandwidths of the chosen set. Units: GB/s; None: not measured on every node."""

    key = "links"

    links: tuple[NodeLinks, ...]
    objective: Literal["effbw", "aggbw", "preserved", "none"] = "none"  # none: others decided.
    pattern: str = ""
    bandwidth_sensitive: bool = False
    effbw_model: str = ""
    in_part: bool = False  # The layouts of the pattern were searched in part.
    effbw_gbps: float | None = None
    aggbw_gbps: float | None = None
    preservedbw_gbps: float | None = None

    def words(self) -> str:
        if self.objective == "none":
            return ""
        parts = [_LINKS[self.objective]]
        if self.in_part:
            parts.append("layouts of this pattern searched in part")
        if self.preservedbw_gbps is None:
            parts.append("links not measured")
        if any(one.worst for one in self.links):
            parts.append("at worst: Slurm chooses the GPUs")
        return ", ".join(parts)


class OnSockets(Fact, frozen=True):
    """How the GPUs lie on sockets."""

    key = "sockets"

    each: int | None = None  # GPUs of each socket; None: CPUs are on the socket of the GPUs.
    by_slurm: bool = False  # Slurm chooses the GPUs.

    def words(self) -> str:
        if self.each is not None:
            return f"{self.each} of its GPUs on each socket"
        if self.by_slurm:
            return "Slurm chooses its GPUs, with its CPUs on their sockets"
        return "with its CPUs on the socket of its GPUs"


class InGroup(Fact, frozen=True):
    """All nodes of the job are in one group."""

    key = "node_groups"

    group: str  # What a group is: block, switch, ...
    tried: int

    def words(self) -> str:
        return f"all nodes in one {self.group}" + (f" ({self.tried} tried)" if self.tried else "")


class Woken(Fact, frozen=True):
    """Nodes that sleep and are woken up for the job."""

    key, line = "woken", "woken up"

    nodes: tuple[str, ...]

    def words(self) -> str:
        return ", ".join(self.nodes[:12]) + (", ..." if len(self.nodes) > 12 else "")


class BySlurm(Fact, frozen=True):
    """Slurm chooses the GPUs of the job."""

    key = "by_slurm"

    reason: str
    gpus: int = 1

    def words(self) -> str:
        return f"Slurm chooses its GPU{'s' * (self.gpus > 1)}: {self.reason}"
