"""Topology-aware placement (Amaral et al., SC'17): ``topo-aware`` and ``topo-aware-p``.

M. Amaral, J. Polo, D. Carrera, S. Seelam, M. Steinder, "Topology-aware GPU scheduling for learning
workloads in cloud environments", SC'17. Utility: ``utility``; bipartition: ``drb``, ``fm``.
"""

from __future__ import annotations

from typing import Any

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, IntArray
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment, set_words
from slurm_gpu_aware.placement.drb.options import TopoOptions, read_options
from slurm_gpu_aware.placement.drb.reason import constraint_reason
from slurm_gpu_aware.placement.drb.search import Found, search
from slurm_gpu_aware.placement.drb.utility import Terms
from slurm_gpu_aware.placement.selection import Choice
from slurm_gpu_aware.topology.levels import with_known_sockets
from slurm_gpu_aware.topology.subsets import slots_of

__all__ = ["TopoAware", "TopoAwareP"]


class TopoAware:
    """The set of the highest utility, whatever it is (TOPO-AWARE).

    Options: see ``topo_options``; those of a request go before the policy's. The ones that only
    ``topo-aware-p`` uses are accepted, so that one job list serves both.
    """

    name = "topo-aware"
    postpones = False

    def __init__(self, **options: Any) -> None:
        self._given = options
        self._read = read_options(self.name, options)

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return exact nodes and slots, or None if nothing fits now."""
        options = self._options(request)
        found = search(request, with_known_sockets(cluster), options)
        if found is None:
            return None
        if self.postpones and found.terms.utility < options.threshold(request.gpus) - 1e-9:
            return None
        return self._assignment(found, options)

    def why_not(self, request: Request, cluster: Cluster) -> str | None:
        """Say which option kept :meth:`place` from an answer; None: no option did."""
        options = self._options(request)
        known = with_known_sockets(cluster)
        found = search(request, known, options)
        if found is None:
            return constraint_reason(self.name, request, known, options)
        wanted = options.threshold(request.gpus)
        if not self.postpones or found.terms.utility >= wanted - 1e-9:
            return None
        return (
            "free GPUs would do; the policy keeps the job waiting for better ones"
            f" (utility {found.terms.utility:.2f}, it asks for {wanted:.2f} now)"
        )

    def _options(self, request: Request) -> TopoOptions:
        if not request.options and request.application is None:
            return self._read
        named = {} if request.application is None else {"application": request.application}
        return read_options(self.name, {**named, **self._given, **request.options})

    def _assignment(self, found: Found, options: TopoOptions) -> Assignment:
        machines = found.machines
        cell = machines.cell
        nodes, slots = _places(found, found.rows, found.masks)
        if not cell.supply.request.whole_node:
            slots = tuple(
                slots_of(machines.kinds[kind].allowed)[: len(own)] if machines.plain[kind] else own
                for kind, own in zip(machines.of_row[found.rows].tolist(), slots, strict=True)
            )
        choice = Choice(nodes, slots, 0, len(cell.units), found.sets, found.ties, cut=found.cut)
        why = self._account(found, options)
        return assignment(self.name, cell, choice, why=why, rule=_rule(found))

    def _account(self, found: Found, options: TopoOptions) -> dict[str, Any]:
        machines = found.machines
        weights = machines.weights
        account: dict[str, Any] = {
            "utility": round(found.terms.utility, 4),
            "terms": _terms_account(found),
            "weights": [
                round(w, 4)
                for w in (weights.communication, weights.interference, weights.fragmentation)
            ],
            "interference_known": machines.knows_interference,
            "kinds_of_machines": len(machines.kinds),
            "alternatives": [
                {
                    "set": set_words(machines.cluster.nodes, *_places(found, rows, masks)),
                    "utility": round(terms.utility, 4),
                    **_short(terms),
                }
                for rows, masks, terms in found.alternatives
            ],
        }
        if self.postpones:
            account["threshold"] = round(options.threshold(machines.cell.supply.request.gpus), 4)
            account["waited_s"] = options.waited_s
        return account


class TopoAwareP(TopoAware):
    """The same, but a job waits while its best set is below its threshold (TOPO-AWARE-P).

    The threshold falls to 0 while the job waits (``waited_s``, ``patience_s``), so none starves.
    """

    name = "topo-aware-p"
    postpones = True


def _places(
    found: Found, rows: IntArray, masks: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    nodes = tuple(int(node) for node in found.machines.cell.units[rows])
    return nodes, tuple(slots_of(mask) for mask in masks)


def _short(terms: Terms) -> dict[str, float]:
    return {"t": terms.t, "I": round(terms.i, 4), "w": round(terms.w, 4)}


def _terms_account(found: Found) -> dict[str, dict[str, float]]:
    terms, scale = found.terms, found.machines.scale
    return {
        "communication": {
            "t": terms.t,
            "best": scale.t_best,
            "worst": scale.t_worst,
            "cost": round(float(scale.communication(float(terms.t))), 4),
        },
        "interference": {
            "I": round(terms.i, 4),
            "worst": round(scale.i_worst, 4),
            "cost": round(float(scale.interference(terms.i)), 4),
        },
        "fragmentation": {
            "w": round(terms.w, 4),
            "worst": round(scale.w_worst, 4),
            "cost": round(float(scale.fragmentation(terms.w)), 4),
        },
    }


def _rule(found: Found) -> str:
    """The rule with the utility; its terms stand in the account."""
    ties = f", the lowest index of {found.ties} equal ones" if found.ties > 1 else ""
    return f"the highest utility, {found.terms.utility:.2f}{ties}"
