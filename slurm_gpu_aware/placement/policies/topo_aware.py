"""Topology-aware placement (Amaral et al., SC'17): ``topo-aware`` and ``topo-aware-p``.

M. Amaral, J. Polo, D. Carrera, S. Seelam, M. Steinder, "Topology-aware GPU scheduling for learning
workloads in cloud environments", SC'17. Utility: ``drb.utility``; bipartition: ``drb.bipartition``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import assignment, set_words
from slurm_gpu_aware.placement.drb.options import TopoOptions
from slurm_gpu_aware.placement.drb.reason import constraint_reason
from slurm_gpu_aware.placement.drb.search import SearchResult, search
from slurm_gpu_aware.placement.drb.utility import Terms
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.topology.distances import with_known_sockets
from slurm_gpu_aware.topology.subsets import slots_of

__all__ = ["TopoAware", "TopoAwareP"]

_STEP = 1e-4  # utility by which a due time is rounded up, so that a job is never due too early


class TopoAware(Policy):
    """The set of the highest utility (TOPO-AWARE).

    Options of a request override those of the policy.
    """

    name = "topo-aware"
    options_type = TopoOptions
    options: TopoOptions
    has_rules = True

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return exact nodes and slots, or None if nothing fits now."""
        found = search(request, with_known_sockets(cluster), self._options_of(request))
        if found is None or found.terms.utility < self._threshold(request) - 1e-9:
            return None
        return self._assignment(found)

    def own_reason(self, request: Request, cluster: Cluster) -> str | None:
        """Say which option makes :meth:`place` return None; None: no option."""
        options, known = self._options_of(request), with_known_sockets(cluster)
        found = search(request, known, options)
        if found is None:
            return constraint_reason(self.name, request, known, options)
        wanted = self._threshold(request)
        if found.terms.utility >= wanted - 1e-9:
            return None
        return (
            "the policy waits for better GPUs than the free ones"
            f" (utility {found.terms.utility:.2f}, it asks for {wanted:.2f} now)"
        )

    def _options_of(self, request: Request) -> TopoOptions:
        return replace(self.options, **request.options) if request.options else self.options

    def _threshold(self, request: Request) -> float:
        """Least utility that the policy accepts."""
        if request.relaxed or not self.may_postpone:
            return 0.0
        return self._options_of(request).threshold(request.gpus, request.waited_s)

    def _assignment(self, found: SearchResult) -> Assignment:
        machines = found.machines
        cell = machines.cell
        nodes, slots = _places(found, found.rows, found.masks)
        if not cell.supply.request.whole_node:
            slots = tuple(
                slots_of(machines.kinds[kind].allowed)[: len(own)] if machines.plain[kind] else own
                for kind, own in zip(machines.of_row[found.rows].tolist(), slots, strict=True)
            )
        choice = Choice(nodes, slots, 0, len(cell.units), found.sets, found.ties, cut=found.cut)
        why = self._account(found)
        return assignment(self.name, cell, choice, why=why, rule=_rule(found))

    def _account(self, found: SearchResult) -> dict[str, Any]:
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
        if self.may_postpone:
            request = machines.cell.supply.request
            account["threshold"] = round(self._threshold(request), 4)
            account["waited_s"] = request.waited_s
        return account


class TopoAwareP(TopoAware):
    """TOPO-AWARE, but a job waits while its best set is below its threshold (TOPO-AWARE-P).

    The threshold falls to 0 while the job waits (option ``patience_s``), so no job starves.
    """

    name = "topo-aware-p"
    may_postpone = True

    def due_after_s(self, request: Request, cluster: Cluster) -> float | None:
        """Wait until the threshold falls to the best utility: patience (1 - u / threshold). s."""
        options = self._options_of(request)
        threshold = options.threshold(request.gpus)
        if math.isinf(options.patience_s) or threshold <= 0:
            return None
        found = search(request, with_known_sockets(cluster), options)
        if found is None:
            return None
        utility = max(round(found.terms.utility, 4) - _STEP, 0.0)
        return options.patience_s * (1.0 - utility / threshold)


def _places(
    found: SearchResult, rows: IntArray, masks: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    nodes = tuple(int(node) for node in found.machines.cell.units[rows])
    return nodes, tuple(slots_of(mask) for mask in masks)


def _short(terms: Terms) -> dict[str, float]:
    return {"t": terms.t, "I": round(terms.i, 4), "w": round(terms.w, 4)}


def _terms_account(found: SearchResult) -> dict[str, dict[str, float]]:
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


def _rule(found: SearchResult) -> str:
    """The rule with the utility; the account has its terms."""
    ties = f", the lowest index of {found.ties} equal ones" if found.ties > 1 else ""
    return f"the highest utility, {found.terms.utility:.2f}{ties}"
