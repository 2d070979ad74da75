"""Policies of placement: their base class, options and reasons, and the registry of all.

GPUs that Slurm chooses on nodes that a policy has chosen.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import common_reason


@dataclass(frozen=True)
class PolicyOptions:
    """Options of a policy that takes none.

    A policy with options derives a frozen dataclass; every field has a default. Its
    ``__post_init__`` checks the values and raises ValueError: ``NAME must be ..., not ...``.
    """

    @classmethod
    def names(cls) -> frozenset[str]:
        """Names of the options."""
        return frozenset(field.name for field in fields(cls))


def bad_option(name: str, wanted: str, value: object) -> ValueError:
    """The error of an option with this value."""
    return ValueError(f"{name} must be {wanted}, not {value!r}")


def option_number(value: object) -> float:
    """The value of an option as a float; nan if it is not a number, or too large for one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    return math.nan


@dataclass(frozen=True)
class Reason:
    """Reason why a request has no place."""

    text: str  # One sentence without a full stop.
    own: bool = False  # A rule of the policy forbids GPUs that fit. Slurm does not keep this rule.


class WaitRule(NamedTuple):
    """Rule by which the planner weighs waiting."""

    cap: float
    """Longest wait from the first time that the job is postponed / its expected run time."""
    margin: float  # Least gain for which a job waits / its expected run time.
    weight: float  # Hours of running that count as much as an hour of waiting.
    longest_s: float
    """Longest wait since the first submission to which waiting by choice may lead; inf: any."""

    def by_share_s(self, request: Request, now: float) -> float:
        """Latest start by ``cap``, on the clock of ``now``."""
        return request.wait.since(now) + self.cap * request.expected_s

    def by_longest_s(self, request: Request) -> float:
        """Latest start by ``longest_s``."""
        return request.waits_since_s + self.longest_s

    def until_s(self, request: Request, now: float) -> float:
        """Latest start for which the request may wait by choice."""
        return min(self.by_share_s(request, now), self.by_longest_s(request))


class Policy(ABC):
    """Chooses GPUs for one request on one snapshot.

    The class attributes declare the capabilities of a policy. Its answers are pure functions of
    the request, the cluster and the policy's options.
    """

    name: ClassVar[str]  # Name in the registry and in assignments.
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions
    of_traces: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options for requests that do not tell by which of Slurm's options they ask for GPUs."""
    by_levels: bool = False
    """The policy takes only sets in one group of a locality level of the cluster."""
    may_postpone: bool = False
    """The policy may refuse free GPUs that fit and wait for better ones (see `place`)."""
    has_rules: bool = False  # The policy has rules that forbid sets that fit (see `own_reason`).

    def __init__(self, options: PolicyOptions | None = None) -> None:
        self.options = self.options_type() if options is None else options

    @abstractmethod
    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return nodes and slots, or None if the request has no place now.

        A policy that may postpone places a request with ``relaxed`` on any set that fits;
        ``waited_s`` is the waiting time of a request.
        """

    def wait_rule(self) -> WaitRule | None:
        """Return the rule by which the planner lets a job wait for a set that ends it sooner.

        None: a job that fits starts. `place` itself never waits by this rule.
        """
        return None

    def own_reason(self, request: Request, cluster: Cluster) -> str | None:
        """Say in one sentence which rule of the policy makes `place` return None; else None."""
        return None

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        """Say why `place` is None: the policy's own reason, else the common one."""
        own = self.own_reason(request, cluster)
        return Reason(common_reason(request, cluster)) if own is None else Reason(own, own=True)

    def relaxed(self, request: Request) -> Request:
        """Return the request as a question of capacity: more free GPUs never turn it down."""
        if not self.may_postpone:
            return request
        return replace(request, wait=replace(request.wait, relaxed=True))

    def postpones(self, request: Request, cluster: Cluster) -> bool:
        """Say whether a request without a place only waits for a better one."""
        return self.may_postpone and self.place(self.relaxed(request), cluster) is not None

    def relaxed_after_s(self, request: Request, cluster: Cluster) -> float | None:
        """Waiting time, from the first submission, after which the request takes the best free set.

        Units: s. None: time alone changes nothing.
        """
        return None


DEFAULT = "eft"  # The policy of a round that names none.
SLURM = "slurm"  # The policy that places like Slurm.
PACKED = "packed"  # The policy that packs jobs onto few nodes: gains of others are told against it.

_POLICIES = {
    "best-fit": "pal.BestFit",
    "eft": "eft.Eft",
    "lowest-index": "pal.FirstFit",
    "mapa-baseline": "mapa.MapaBaseline",
    "mapa-greedy": "mapa.MapaGreedy",
    "mapa-preserve": "mapa.MapaPreserve",
    "mapa-topo-aware": "mapa.MapaTopoAware",
    "packed": "pal.Packed",
    "pal": "pal.Pal",
    "pal+mapa": "mapa.PalMapa",
    "pm-first": "pal.PmFirst",
    "random": "pal.Random",
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
