"""Which nodes Slurm lets one job have: a block of topology/block, a fabric of topology/tree.

As slurmctld does (eval_nodes_block.c, eval_nodes_tree.c; measured: docs/internals/slurm.md):

- **block**: the number of nodes decides the size of the block that has to hold the job; up to the
  base BlockSize that is one base block. Nodes in no block get no jobs at all.
- **tree**: all nodes must be below one switch. Nodes below no switch reach nobody.
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
    """What a topology says of the nodes of one job."""

    kind: str = ""
    """`BLOCK`, `TREE`; empty: nothing."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Node -> its base block, or the topmost switch above it."""
    block_size: int = 0
    """Base BlockSize."""
    doubt: str | None = None
    """Why the groups cannot be told."""

    def of(self, nodes: Sequence[str]) -> NodeGroups | None:
        """Groups of these nodes, numbered in their order; None: no job is bound by them."""
        if not self.kind:
            return None
        if self.kind == TREE:
            # Whoever is below no switch is alone.
            names = [self.groups.get(node, f"/{node}") for node in nodes]
        else:
            names = [self.groups.get(node, "") for node in nodes]
        numbers = {name: i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
        found = np.array([numbers.get(name, -1) for name in names], dtype=np.int64)
        if not self.doubt and len(numbers) == 1 and (found >= 0).all():
            return None
        return NodeGroups(found, self.kind)


def fabric_of(switches: Sequence[SlurmSwitch]) -> Fabric:
    """What Slurm's topology says of the nodes of one job."""
    blocks = [s for s in switches if s.block_size is not None and s.level == 0]
    # The largest first: whatever is below another switch is known by then.
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
    """Name of the topology that ``topology.yaml`` makes the cluster's default.

    The first with ``cluster_default: true``, else the first. A file that cannot be read is none:
    then Slurm has one topology, which it calls ``default``.
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
