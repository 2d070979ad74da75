"""State of a node in a rollout: drained by the rollout, usable, registered as configured."""

from __future__ import annotations

from slurm_gpu_aware.names import index_type
from slurm_gpu_aware.slurm.gres_line import is_mig
from slurm_gpu_aware.slurm.records import SlurmNode

__all__ = [
    "DRAINED",
    "REASON",
    "has_index_types",
    "ours_now",
    "registration_problem",
    "unusable",
]

REASON = "gpu-aware setup --roll"
"""Reason of nodes that a rollout drains."""

DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_AWAY = frozenset(
    {
        *("DOWN", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "NOT_RESPONDING"),
        *("MAINT", "MAINTENANCE"),  # scontrol prints the latter, also in 24.11
        *("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"),
        *("REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED"),
    }
)


def unusable(view: SlurmNode, ours: bool) -> str | None:
    """Why a node cannot be moved now; None: it can."""
    if ours:
        return None
    if view.states & DRAINED:
        return f"drained for another reason ({view.reason or 'none is given'})"
    if view.states & _AWAY:
        return f"its state is {'+'.join(sorted(view.states))}"
    if any(is_mig(kind) for kind, _ in view.gpus):
        return "its GPUs are partitioned (MIG)"
    return None


def ours_now(view: SlurmNode, in_hand: str | None) -> bool:
    """Whether a rollout drained it. Slurm replaces the reason on a registration with wrong GPUs."""
    if not view.states & (DRAINED | {"DOWN", "INVAL", "INVALID_REG"}):
        return False
    return view.reason.startswith(REASON) or (view.name == in_hand and "gres/" in view.reason)


def has_index_types(view: SlurmNode, count: int) -> bool:
    """Whether Slurm itself has one type per GPU for a node of ``count`` GPUs."""
    return not {kind or "" for kind, _ in view.gpus}.isdisjoint(map(index_type, range(count)))


def registration_problem(view: SlurmNode, types: set[str], count: int) -> str | None:
    """Difference between a registration and the files; ``types`` empty: plain. None: they agree."""
    wrong = view.states & {"DOWN", "INVAL", "INVALID_REG", "NOT_RESPONDING", "UNKNOWN"}
    if wrong or view.slurmd_start_s is None:
        reason = f", {view.reason}" if view.reason and not view.reason.startswith(REASON) else ""
        return f"its state is {'+'.join(sorted(view.states))}{reason}"
    have = {kind or "" for kind, _ in view.gpus}
    fits = have == types if types else not has_index_types(view, count)
    if not fits or sum(n for _, n in view.gpus) != count:
        shown = ", ".join(f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for kind, n in view.gpus)
        return f"Slurm has {shown or 'no GPUs'} for it"
    return None
