"""Topology-aware placement (Amaral et al., SC'17): ``topo-aware`` and ``topo-aware-p``.

M. Amaral, J. Polo, D. Carrera, S. Seelam, M. Steinder, "Topology-aware GPU scheduling for learning
workloads in cloud environments", SC'17. Utility: ``drb.utility``; bipartition:
``drb.bipartition``.
"""

import math
from collections.abc import Mapping
from dataclasses import astuple, replace

from msgspec import Struct

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment, set_words
from slurm_gpu_aware.placement.drb.machines import Machines, PlacedSet
from slurm_gpu_aware.placement.drb.search import SearchResult, search
from slurm_gpu_aware.placement.drb.utility import Terms, TopoOptions
from slurm_gpu_aware.placement.feasible import common_reason
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.shapes import splits
from slurm_gpu_aware.time_text import counted
from slurm_gpu_aware.topology.locality import with_known_sockets
from slurm_gpu_aware.topology.subsets import slots_of

_STEP = 1e-4  # utility by which a due time is rounded up, so that a job is never due too early


class Alternative(Struct, frozen=True, rename={"i": "I"}):
    """Another set, and the terms of its utility."""

    set: str
    utility: float
    t: float
    i: float
    w: float


class Utility(Fact, frozen=True):
    """The utility of the set, and what it is made of."""

    key = "utility"

    utility: float
    ties: int = 1
    terms: Mapping[str, Mapping[str, float]] = {}
    weights: tuple[float, ...] = ()
    interference_known: bool = False
    kinds_of_machines: int = 0
    alternatives: tuple[Alternative, ...] = ()
    threshold: float | None = None  # Least utility that is accepted; None: the job does not wait.
    waited_s: float | None = None

    def words(self) -> str:
        ties = f", the first of {self.ties} equal ones" if self.ties > 1 else ""
        return f"the highest utility, {self.utility:.2f}{ties}"


class TopoAware(Policy):
    """The set of the highest utility (TOPO-AWARE).

    Options of a request override those of the policy.
    """

    name = "topo-aware"
    options_type = TopoOptions
    options: TopoOptions
    has_rules = True

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        found = search(request, with_known_sockets(cluster), self._options_of(request))
        if found is None or found.best.terms.utility < self._threshold(request) - 1e-9:
            return None
        machines = found.machines
        nodes, slots = _places(machines, found.best)
        if not request.nodes.whole:
            kinds = machines.of_row[found.best.rows].tolist()
            slots = tuple(
                slots_of(machines.kinds[kind].allowed)[: len(own)] if machines.plain[kind] else own
                for kind, own in zip(kinds, slots, strict=True)
            )
        choice = Choice(nodes, slots, found.sets, found.ties, cut=found.cut)
        return assignment(self.name, machines.cell, choice, self._fact(found))

    def own_reason(self, request: Request, cluster: Cluster) -> str | None:
        """Say which option makes :meth:`place` return None; None: no option."""
        options, known = self._options_of(request), with_known_sockets(cluster)
        found = search(request, known, options)
        if found is None:
            return self._broken_option(request, known, options)
        wanted = self._threshold(request)
        if found.best.terms.utility >= wanted - 1e-9:
            return None
        return (
            "the policy waits for better GPUs than the free ones"
            f" (utility {found.best.terms.utility:.2f}, it asks for {wanted:.2f} now)"
        )

    def _broken_option(
        self, request: Request, cluster: Cluster, options: TopoOptions
    ) -> str | None:
        """Say which option leaves the job without a set; None: the options do not affect it."""
        need = options.min_bandwidth_gbps
        if need > 0.0:
            without = replace(options, min_bandwidth_gbps=0.0, single_node=options.one_machine)
            if search(request, cluster, without) is not None:
                return (
                    f"no set that would fit has links of at least {need:g} GB/s between all its"
                    f" GPUs (min_bandwidth_gbps of policy {self.name})"
                )
        choices = splits(request, cluster)
        if options.one_machine and any(split.nodes != 1 for split in choices):
            what, rate = "single_node", ""
            if not options.single_node:
                what = f"min_bandwidth_gbps {need:g}"
                rate = f" (network_gbps {options.network_gbps:g})"
            why = _on_one(request, cluster)
            return f"{what} of policy {self.name} keeps it on one node{rate}: {why}"
        if options.anti_collocation and any(split.per_node != 1 for split in choices):
            why = _apart(request, cluster)
            return f"anti_collocation of policy {self.name} gives each GPU a node of its own: {why}"
        return None

    def _options_of(self, request: Request) -> TopoOptions:
        own = request.policy.options
        return replace(self.options, **own) if own else self.options

    def _threshold(self, request: Request) -> float:
        """Least utility that the policy accepts."""
        if request.wait.relaxed or not self.may_postpone:
            return 0.0
        return self._options_of(request).threshold(request.gpus, request.wait.waited_s)

    def _fact(self, found: SearchResult) -> Utility:
        machines, terms = found.machines, found.best.terms
        request = machines.cell.supply.request
        return Utility(
            round(terms.utility, 4),
            found.ties,
            terms=_terms_account(machines, terms),
            weights=tuple(round(weight, 4) for weight in astuple(machines.weights)),
            interference_known=machines.knows_interference,
            kinds_of_machines=len(machines.kinds),
            alternatives=tuple(
                Alternative(
                    set_words(machines.cluster, *_places(machines, other)),
                    round(other.terms.utility, 4),
                    other.terms.t,
                    round(other.terms.i, 4),
                    round(other.terms.w, 4),
                )
                for other in found.alternatives
            ),
            threshold=round(self._threshold(request), 4) if self.may_postpone else None,
            waited_s=request.wait.waited_s if self.may_postpone else None,
        )


class TopoAwareP(TopoAware):
    """TOPO-AWARE, but a job waits while its best set is below its threshold (TOPO-AWARE-P).

    The threshold falls to 0 while the job waits (option ``patience_s``), so no job starves.
    """

    name = "topo-aware-p"
    may_postpone = True

    def relaxed_after_s(self, request: Request, cluster: Cluster) -> float | None:
        """Wait until the threshold falls to the best utility: patience (1 - u / threshold). s."""
        options = self._options_of(request)
        threshold = options.threshold(request.gpus)
        if math.isinf(options.patience_s) or threshold <= 0:
            return None
        found = search(request, with_known_sockets(cluster), options)
        if found is None:
            return None
        utility = max(round(found.best.terms.utility, 4) - _STEP, 0.0)
        return options.patience_s * (1.0 - utility / threshold)


def _places(
    machines: Machines, chosen: PlacedSet
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Nodes and slots of a set."""
    nodes = machines.cell.units[chosen.rows].tolist()
    return tuple(nodes), tuple(map(slots_of, chosen.masks))


def _terms_account(machines: Machines, terms: Terms) -> dict[str, dict[str, float]]:
    scale = machines.scale
    t, i, w = round(terms.t, 4), round(terms.i, 4), round(terms.w, 4)
    i_worst, w_worst = round(scale.i_worst, 4), round(scale.w_worst, 4)
    costs = scale.communication(float(terms.t)), scale.interference(terms.i)
    of_t, of_i, of_w = (round(float(c), 4) for c in (*costs, scale.fragmentation(terms.w)))
    return {
        "communication": {"t": t, "best": scale.t_best, "worst": scale.t_worst, "cost": of_t},
        "interference": {"I": i, "worst": i_worst, "cost": of_i},
        "fragmentation": {"w": w, "worst": w_worst, "cost": of_w},
    }


def _on_one(request: Request, cluster: Cluster) -> str:
    """Say why one node is not enough."""
    fewest = max(request.fewest_nodes, request.gpus // (request.gpus_per_node or request.gpus))
    if fewest > 1:
        return f"it asks for {fewest} nodes"
    width = cluster.shape[1]
    if request.gpus > width:
        return f"nodes have at most {counted(width, 'GPU')}"
    return common_reason(replace(request, max_nodes=1), cluster)


def _apart(request: Request, cluster: Cluster) -> str:
    """Reason why the job has no place with one GPU on each node."""
    if request.gpus_per_node not in (None, 1):
        return f"it asks for {request.gpus_per_node} GPUs per node"
    if request.max_nodes is not None and request.max_nodes < request.gpus:
        return f"it asks for {counted(request.max_nodes, 'node')} at most"
    return common_reason(replace(request, gpus_per_node=1), cluster)
