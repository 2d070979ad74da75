"""GPU nodes of the cluster, as ``sinfo`` lists them: which a sweep probes, and in which order."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.words import parse_duration

_SOCKETS = re.compile(r"\([^)]*\)")
_STATE = re.compile(r"([a-z_]+)([^a-z_]*)")
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})
_DAY_S = 86_400.0


class Target(NamedTuple):
    """A GPU node and one of its partitions."""

    node: str
    partition: str
    gpus: int
    idle: bool = True
    """Whether a job could start on all of the node now; a sleeping node is not idle."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a node."""

    node: str
    state: str
    """``done``, ``failed``, ``timeout``, ``preempted``, or ``skipped`` (not tried)."""
    reason: str = ""
    gpus: int = 0
    timings: int = 0
    faults: int = 0
    """Failed calls in a finished probe."""
    took_s: float = 0.0
    causes: tuple[str, ...] = ()
    """``call: error`` of the failed calls, each once."""
    unlocked: bool = False
    """Whether a clock could not be locked or reset."""


def gpu_nodes(probe_s: float) -> tuple[list[Target], list[Outcome]]:
    """Ask Slurm for its GPU nodes: (nodes to probe, the others with the reason).

    ``probe_s``: time limit of a probe.

    Raises SourceError if ``sinfo`` fails.
    """
    text, _ = run_command(["sinfo", "-a", "-N", "-h", "-o", "%N|%P|%T|%G|%l"], 30.0)
    return parse_sinfo(text, probe_s)


def parse_sinfo(text: str, probe_s: float) -> tuple[list[Target], list[Outcome]]:
    """Parse lines ``node|partition|state|gres|time limit``, one per node and partition.

    sinfo prints the partitions of a node in any order. Taken is one that allows the probe's time,
    for else its job never starts; of these the default one, or the first by name.
    """
    targets: dict[str, Target] = {}
    taken: dict[str, tuple[bool, bool, str]] = {}
    skipped: dict[str, Outcome] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5:
            continue
        node, partition, state, gres, limit = fields
        gpus = _gpu_count(gres)
        if not gpus:
            continue
        match = _STATE.match(state)
        word, flags = match.groups() if match else ("unknown", "")
        if word not in _USABLE or "*" in flags:
            reason = "does not respond" if "*" in flags else f"is {word}"
            skipped[node] = Outcome(node, "skipped", f"node {reason}", gpus)
            continue
        too_short = parse_duration(limit.upper()) < probe_s
        rank = (too_short, not partition.endswith("*"), partition)
        if rank <= taken.get(node, rank):
            taken[node] = rank
            targets[node] = Target(node, partition.rstrip("*"), gpus, state == "idle")
    return list(targets.values()), list(skipped.values())


def _gpu_count(gres: str) -> int:
    """Sum of ``gpu``, ``gpu:N`` and ``gpu:TYPE:N`` in a node's GRES."""
    items = [item.split(":") for item in _SOCKETS.sub("", gres).split(",")]
    return sum(
        int(words[-1]) if len(words) > 1 and words[-1].isdigit() else 1
        for words in items
        if words[0] == "gpu"
    )


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
