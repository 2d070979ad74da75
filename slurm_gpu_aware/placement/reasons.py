"""Why a policy gives a request no place: its own reason if it has one, else the common one."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import why_not
from slurm_gpu_aware.placement.policy import Policy, WithReasons

__all__ = ["Reason", "reason_for"]


@dataclass(frozen=True)
class Reason:
    """Why nothing was placed."""

    text: str
    """One sentence for a person, without a full stop."""
    own: bool = False
    """An option of the policy forbids what is there; Slurm would not keep to it."""


def reason_for(policy: Policy, request: Request, cluster: Cluster) -> Reason:
    """Say why ``policy.place(request, cluster)`` is None."""
    own = policy.why_not(request, cluster) if isinstance(policy, WithReasons) else None
    return Reason(why_not(request, cluster)) if own is None else Reason(own, own=True)
