"""The protocol that every placement policy follows, and the registry by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol, runtime_checkable

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request

__all__ = ["Policy", "WithReasons", "make_policy", "option_names", "policy_names"]


@runtime_checkable
class Policy(Protocol):
    """Chooses GPUs for one request on one snapshot.

    ``place`` is a pure function of its arguments (and of the policy's own seed): it never changes
    the cluster, and the same input gives the same answer. It returns None if the request cannot
    be placed on what is free now. A class attribute ``by_levels`` says that it takes only sets
    that some level of the cluster holds, and the one of the least predicted slowdown.
    """

    @property
    def name(self) -> str:
        """Registry name."""

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return exact nodes and slots, or None if nothing fits now."""


@runtime_checkable
class WithReasons(Policy, Protocol):
    """A policy with rules of its own (a constraint, a threshold) that may forbid what would fit.

    Without this method a policy has none: it places whatever fits (``reasons.reason_for``).
    """

    def why_not(self, request: Request, cluster: Cluster) -> str | None:
        """Say in one sentence which rule kept ``place`` from an answer; None: no rule did."""


Factory = Callable[..., Policy]


@cache
def _registry() -> Mapping[str, tuple[Factory, frozenset[str]]]:
    """Name -> (factory, names of its options). One list to grep, imported late."""
    from slurm_gpu_aware.placement.drb.options import OPTION_NAMES
    from slurm_gpu_aware.placement.policies.baselines import BestFit, FirstFit, Packed, Random
    from slurm_gpu_aware.placement.policies.mapa import (
        MapaBaseline,
        MapaGreedy,
        MapaPreserve,
        MapaTopoAware,
    )
    from slurm_gpu_aware.placement.policies.pal import Pal
    from slurm_gpu_aware.placement.policies.pal_mapa import PalMapa
    from slurm_gpu_aware.placement.policies.pm_first import PmFirst
    from slurm_gpu_aware.placement.policies.topo_aware import TopoAware, TopoAwareP

    return {
        "pal": (Pal, frozenset()),
        "pm-first": (PmFirst, frozenset()),
        "packed": (Packed, frozenset()),
        "best-fit": (BestFit, frozenset()),
        "lowest-index": (FirstFit, frozenset()),
        "random": (Random, frozenset({"seed"})),
        "pal+mapa": (PalMapa, frozenset({"effbw"})),
        "mapa-preserve": (MapaPreserve, frozenset({"effbw"})),
        "mapa-greedy": (MapaGreedy, frozenset({"effbw"})),
        "mapa-topo-aware": (MapaTopoAware, frozenset()),
        "mapa-baseline": (MapaBaseline, frozenset()),
        "topo-aware": (TopoAware, OPTION_NAMES - {"waited_s"}),
        "topo-aware-p": (TopoAwareP, OPTION_NAMES),
    }


def policy_names() -> tuple[str, ...]:
    """All registry names, sorted."""
    return tuple(sorted(_registry()))


def option_names(name: str) -> frozenset[str]:
    """Options that a policy takes; empty for an unknown name."""
    entry = _registry().get(name)
    return entry[1] if entry is not None else frozenset()


def make_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Build a policy by name.

    Raises
    ------
    PolicyError
        Unknown name, or an option that this policy does not take; names the valid ones.
    """
    registry = _registry()
    if name not in registry:
        raise PolicyError(f"unknown policy {name!r}; known: {', '.join(sorted(registry))}")
    factory, known = registry[name]
    unknown = sorted(set(options or {}) - known)
    if unknown:
        valid = ", ".join(sorted(known)) or "none"
        raise PolicyError(f"policy {name!r} has no option {unknown[0]!r}; its options: {valid}")
    return factory(**dict(options or {}))
