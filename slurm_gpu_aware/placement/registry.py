"""Registry of policies."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from slurm_gpu_aware.errors import PolicyError
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
