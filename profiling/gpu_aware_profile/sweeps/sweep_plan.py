"""Which nodes a sweep probes, and in which order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_aware_profile.sweeps.gpu_nodes import Outcome, Target, gpu_nodes
from slurm_gpu_aware.errors import SourceError

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Plan:
    """Nodes of a sweep."""

    whole: tuple[str, ...]
    """All nodes without which it is not complete."""
    targets: tuple[Target, ...]
    """Nodes to probe now, longest ago first."""
    outcomes: tuple[Outcome, ...]
    """Of nodes that cannot be probed now."""
    recent: int = 0
    """Nodes that are left out because they were probed recently."""


def fresh_plan(
    nodes: Sequence[str], given: Mapping[str, Any], probed_at: Mapping[str, float], now: float
) -> Plan:
    """Plan of a new sweep.

    ``nodes``: only these; empty: all. ``given``: options of the command. ``probed_at``: node ->
    Unix time of its last probe. Raises SourceError.

    Nodes that are not idle, if only idle ones are wanted, are no part of the sweep: the next one
    takes them.
    """
    targets, skipped = _known(given["time_limit"])
    known = [t.node for t in targets] + [o.node for o in skipped]
    _check(nodes, known, "this cluster; GPU nodes")
    wanted = frozenset(nodes or known)
    until = math.inf if given["older_than"] is None else now - _DAY_S * given["older_than"]
    old = {node for node in wanted if probed_at.get(node, -math.inf) <= until}
    chosen = [target for target in targets if target.node in old]
    outcomes = [outcome for outcome in skipped if outcome.node in old]
    whole = [node for node in known if node in old]
    if given["idle_only"]:
        chosen, busy = _idle(chosen)
        outcomes += busy
        whole = [target.node for target in chosen]
    chosen.sort(key=lambda target: probed_at.get(target.node, -math.inf))
    return Plan(tuple(whole), tuple(chosen), tuple(outcomes), len(wanted) - len(old))


def resumed_plan(
    sweep_id: str,
    names: Sequence[str],
    done: frozenset[str],
    nodes: Sequence[str],
    given: Mapping[str, Any],
) -> Plan:
    """Plan of the rest of a sweep.

    ``names``: all of its nodes. ``done``: those that are done. ``nodes``: only these now; empty:
    all. Raises SourceError.
    """
    targets, skipped = _known(given["time_limit"])
    _check(nodes, names, f"sweep {sweep_id}; its nodes")
    known = {t.node for t in targets} | {o.node for o in skipped}
    wanted = [name for name in nodes or names if name not in done]
    outcomes = [
        Outcome(name, "skipped", "Slurm has no such GPU node")
        for name in wanted
        if name not in known
    ]
    outcomes += [outcome for outcome in skipped if outcome.node in wanted]
    chosen = [target for target in targets if target.node in wanted]
    if given["idle_only"]:
        chosen, busy = _idle(chosen)
        outcomes += busy
    # With a node that Slurm no longer has the sweep would never be complete.
    whole = tuple(name for name in names if name in known)
    return Plan(whole, tuple(chosen), tuple(outcomes))


def _known(probe_s: float) -> tuple[list[Target], list[Outcome]]:
    targets, skipped = gpu_nodes(probe_s)
    if not targets and not skipped:
        raise SourceError("Slurm knows no node with GPUs; check GresTypes and Gres= in slurm.conf")
    return targets, skipped


def _check(nodes: Sequence[str], known: Sequence[str], of: str) -> None:
    for name in nodes:
        if name not in known:
            listed = ", ".join(known[:20]) or "none"
            raise SourceError(f"{name!r} is not a GPU node of {of}: {listed}")


def _idle(targets: Sequence[Target]) -> tuple[list[Target], list[Outcome]]:
    """The idle ones, and the others as skipped."""
    busy = [Outcome(t.node, "skipped", "node is not idle", t.gpus) for t in targets if not t.idle]
    return [target for target in targets if target.idle], busy
