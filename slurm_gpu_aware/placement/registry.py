"""Registry of policies.

GPUs that Slurm chooses on nodes that a policy has chosen.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policy import Policy

DEFAULT = "eft"
"""The policy of a round that names none."""
SLURM = "slurm"
"""The policy that places like Slurm."""
PACKED = "packed"
"""The policy that packs jobs onto few nodes: gains of others are told against it."""

_POLICIES = {
    "best-fit": "baselines.BestFit",
    "eft": "eft.Eft",
    "lowest-index": "baselines.FirstFit",
    "mapa-baseline": "mapa.MapaBaseline",
    "mapa-greedy": "mapa.MapaGreedy",
    "mapa-preserve": "mapa.MapaPreserve",
    "mapa-topo-aware": "mapa.MapaTopoAware",
    "packed": "baselines.Packed",
    "pal": "pal.Pal",
    "pal+mapa": "mapa.PalMapa",
    "pm-first": "pal.PmFirst",
    "random": "baselines.Random",
    "slurm": "slurm.Slurm",
    "topo-aware": "topo_aware.TopoAware",
    "topo-aware-p": "topo_aware.TopoAwareP",
}
"""Name -> module and class in ``placement.policies``, imported on first use."""


def policy_names() -> tuple[str, ...]:
    """All names, sorted."""
    return tuple(sorted(_POLICIES))


def policy_class(name: str) -> type[Policy]:
    """Return the class of a policy. Raises PolicyError for an unknown name."""
    if name not in _POLICIES:
        raise PolicyError(f"unknown policy {name!r}; known: {', '.join(policy_names())}")
    module, _, attribute = _POLICIES[name].partition(".")
    found: type[Policy] = getattr(
        import_module(f"slurm_gpu_aware.placement.policies.{module}"), attribute
    )
    return found


def option_names(name: str) -> frozenset[str]:
    """Names of the options that a policy takes. Raises PolicyError for an unknown policy."""
    return policy_class(name).options_type.names()


def make_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Build a policy by name.

    Raises PolicyError, which names valid ones, for an unknown name or option or an invalid value.
    """
    found, given = policy_class(name), dict(options or {})
    known = found.options_type.names()
    unknown = sorted(set(given) - known)
    if unknown:
        valid = ", ".join(sorted(known)) or "none"
        raise PolicyError(f"policy {name!r} has no option {unknown[0]!r}; its options: {valid}")
    try:
        return found(found.options_type(**given))
    except ValueError as exc:
        raise PolicyError(f"policy {name!r}: {exc}") from None


def with_slurms_gpus(
    assignment: Assignment, request: Request, cluster: Cluster, options: Mapping[str, Any]
) -> Assignment:
    """The assignment with the GPUs that Slurm gives the request on these nodes (``ReqNodeList``).

    ``options``: those of the policy `SLURM`. Unchanged where the GPUs are known: single ones are
    named, whole nodes are taken, or Slurm chose. Where Slurm's rules for cores leave out nodes that
    the policy takes, it has the first free GPUs.
    """
    if assignment.exact or request.nodes.whole or assignment.policy == SLURM:
        return assignment
    chosen = np.zeros(len(cluster.nodes), dtype=np.bool_)
    chosen[list(assignment.nodes)] = True
    count = len(assignment.nodes)
    rules = replace(request.nodes, eligible=chosen, allowed=None, required=assignment.nodes)
    narrow = replace(request, nodes=rules, min_nodes=count, max_nodes=count)
    found = make_policy(SLURM, options).place(narrow, cluster)
    if found is not None and found.nodes == assignment.nodes and found.size == assignment.size:
        return replace(assignment, slots=found.slots)
    first = tuple(
        tuple(np.flatnonzero(cluster.free[node])[: len(slots)].tolist())
        for node, slots in assignment.gpus
    )
    return replace(assignment, slots=first)
