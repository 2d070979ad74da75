"""Fabric: the nodes that Slurm's topology lets one job have.

As slurmctld does (eval_nodes_block.c, eval_nodes_tree.c; measured: docs/internals/slurm.md):

- **topology/block**: the number of nodes decides the size of the block that must hold the job; up
  to the base BlockSize it is one base block. A node in no block gets no jobs.
- **topology/tree**: all nodes must be below one switch. A node below no switch reaches no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from slurm_gpu_aware.model.request import NodeGroups
from slurm_gpu_aware.slurm.records import SlurmSwitch

__all__ = ["BLOCK", "TREE", "Fabric", "default_topology", "fabric_of"]

BLOCK = "block"
TREE = "switch fabric"
_NAME = re.compile(r"\s*(?:-\s+)?topology\s*:\s*([^\s#]+)")
_DEFAULT = re.compile(r"\s*(?:-\s+)?cluster_default\s*:\s*(?:true|yes|on)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Fabric:
    """Groups of nodes of which a job must not leave one."""

    kind: str = ""
    """`BLOCK`, `TREE`; empty: no groups."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Node -> its base block, or the topmost switch above it."""
    block_size: int = 0
    """Base BlockSize."""
    doubt: str | None = None
    """Why the groups are not clear; None: they are."""

    def of(self, nodes: Sequence[str]) -> NodeGroups | None:
        """Groups of these nodes, numbered in their order; None: no job is bound by them."""
        if not self.kind:
            return None
        if self.kind == TREE:
            # A node below no switch is a group of its own.
            names = [self.groups.get(node, f"/{node}") for node in nodes]
        else:
            names = [self.groups.get(node, "") for node in nodes]
        numbers = {name: i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
        groups = np.array([numbers.get(name, -1) for name in names], dtype=np.int64)
        if not self.doubt and len(numbers) == 1 and (groups >= 0).all():
            return None
        return NodeGroups(groups, self.kind)


def fabric_of(switches: Sequence[SlurmSwitch]) -> Fabric:
    """The fabric of Slurm's switches or blocks."""
    blocks = [s for s in switches if s.block_size is not None and s.level == 0]
    # The largest first, so that a switch is known before those below it.
    tops = blocks or sorted(switches, key=lambda s: (-len(s.nodes), -s.level, s.name))
    groups: dict[str, str] = {}
    doubt = None
    for switch in filter(lambda s: s.nodes, tops):
        above = {groups.get(node) for node in switch.nodes}
        if above != {None} and (blocks or len(above) > 1):
            doubt = f"nodes below {switch.name} are also below another that does not hold it"
        for node in switch.nodes:
            groups.setdefault(node, switch.name)
    if not groups:
        return Fabric()
    if not blocks:
        return Fabric(TREE, groups, doubt=doubt)
    return Fabric(BLOCK, groups, min(b.block_size or 0 for b in blocks), doubt)


def default_topology(path: Path) -> str:
    """Name of the cluster's default topology in ``topology.yaml``.

    The first with ``cluster_default: true``, else the first. Without a readable file Slurm has one
    topology, which it calls ``default``.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return "default"
    names: list[str] = []
    for line in text.splitlines():
        if match := _NAME.match(line):
            names.append(match[1].strip("\"'"))
        elif names and _DEFAULT.match(line):
            return names[-1]
    return names[0] if names else "default"
