"""The base class of placement policies: what a policy declares and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import common_reason

__all__ = ["Policy", "PolicyOptions", "Reason"]


@dataclass(frozen=True)
class PolicyOptions:
    """Options of a policy that takes none.

    A policy with options derives a frozen dataclass of which every field has a default. Its
    ``__post_init__`` checks the values and raises ValueError: ``NAME must be ..., not ...``.
    """

    @classmethod
    def names(cls) -> frozenset[str]:
        """Names of the options."""
        return frozenset(field.name for field in fields(cls))


@dataclass(frozen=True)
class Reason:
    """Why nothing was placed."""

    text: str
    """One sentence without a full stop."""
    own: bool = False
    """A rule of the policy forbids what is there. Slurm does not keep this rule."""


class Policy(ABC):
    """Chooses GPUs for one request on one snapshot.

    A policy declares what it can do by the class attributes below. Its answers are pure functions
    of the request, the cluster and the policy's options: a call changes nothing, and the same
    input gives the same answer.
    """

    name: ClassVar[str]
    """Name in the registry and in assignments."""
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions
    by_levels: bool = False
    """It takes only sets that lie in one group of some locality level of the cluster, and of these
    a set of the least predicted slowdown."""
    may_postpone: bool = False
    """It may refuse free GPUs that fit, and wait for better ones (`place` describes how)."""
    has_rules: bool = False
    """It has rules of its own that forbid what would fit (`own_reason`)."""

    def __init__(self, options: PolicyOptions | None = None) -> None:
        self.options = self.options_type() if options is None else options

    @abstractmethod
    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Return exact nodes and slots, or None if the request gets no place now.

        A policy that may postpone places a request with ``relaxed`` on any set that fits.
        ``waited_s`` of a request says how long it has waited.
        """

    def own_reason(self, request: Request, cluster: Cluster) -> str | None:
        """Say in one sentence which rule of the policy kept `place` from an answer, or None."""
        return None

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        """Say why `place` is None: the policy's own reason, else the common one."""
        own = self.own_reason(request, cluster)
        return Reason(common_reason(request, cluster)) if own is None else Reason(own, own=True)

    def relaxed(self, request: Request) -> Request:
        """Return the request as a question of capacity.

        More free GPUs never turn its answer from a place into None.
        """
        return replace(request, relaxed=True) if self.may_postpone else request

    def postpones(self, request: Request, cluster: Cluster) -> bool:
        """Say whether a request without a place only waits for a better one."""
        return self.may_postpone and self.place(self.relaxed(request), cluster) is not None

    def due_after_s(self, request: Request, cluster: Cluster) -> float | None:
        """Wait after which the request takes the best set that is free now. Units: s.

        Counted from the submission; None: time alone changes nothing.
        """
        return None
