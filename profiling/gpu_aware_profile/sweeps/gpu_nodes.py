"""GPU nodes of the cluster, as ``sinfo`` lists them, and what became of each in a sweep."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.words import parse_duration

_SOCKETS = re.compile(r"\([^)]*\)")
_STATE = re.compile(r"([a-z_]+)([^a-z_]*)")
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})


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
