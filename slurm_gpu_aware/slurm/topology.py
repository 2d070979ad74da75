"""Network of Slurm: groups of nodes by level, and those that bound a job, by Slurm's topology.

``scontrol show topology`` prints one record a line, nothing for topology/default and topology/flat,
and only the default one of several topologies (24.11 to 26.05)::

    SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
    SwitchName=r0 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]
    BlockName=b0 BlockIndex=0 Nodes=n[1-2] BlockSize=2
    AggregatedBlock=b[0-1] BlockIndex=4 Nodes=n[1-4] BlockSize=4

A switch is one level above its highest child, so a leaf switch can be below one of level 2. Each
size of aggregated blocks is a level.

Racks: where nodes are, by the same, else by their names.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.request import NodeGroups
from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.slurm.words import by_number, expand_hostlist

log = logging.getLogger(__name__)

BLOCK = "block"
TREE = "switch fabric"
_RECORD = re.compile(r"(?:[A-Za-z]+=[^\s=]+ ?)+\Z")
_NAME = re.compile(r"\s*(?:-\s+)?topology\s*:\s*([^\s#]+)")
_DEFAULT = re.compile(r"\s*(?:-\s+)?cluster_default\s*:\s*(?:true|yes|on)\b", re.IGNORECASE)
_BLOCKS = re.compile(r"^\s*(?:-\s+)?block\s*:", re.MULTILINE)
_AGAIN_S = 60.0
_WAIT_S = 0.5  # longest wait for another answer; Slurm is slow while its first controller is down
"""The topology is read again after this time."""
_LAST_NUMBER = re.compile(r"(.*?)(\d{1,9})\D*\Z")
_MOST_APART = 128  # Numbers that are further apart are no positions in racks.
_IN_RACK = 16  # Nodes that a rack is taken to have if the names do not say it.


def parse_topology(text: str) -> list[SlurmSwitch]:
    """Switches or blocks. Raises SourceError for a line of another plugin than tree and block."""
    records = [_fields(line) for line in text.splitlines() if line.strip()]
    block_sizes = sorted({_number(r, "BlockSize") for r in records if "AggregatedBlock" in r})
    switches = []
    for record in records:
        (kind, name), *_ = record.items()
        size = None if kind == "SwitchName" else _number(record, "BlockSize")
        if size is None:
            level = _number(record, "Level")
        else:
            level = 1 + block_sizes.index(size) if kind == "AggregatedBlock" else 0
        nodes = frozenset(expand_hostlist(record.get("Nodes", "")))
        switches.append(SlurmSwitch(name, level, nodes, size))
    return switches


def _fields(line: str) -> dict[str, str]:
    if not _RECORD.match(line):
        raise SourceError(f"scontrol show topology: {line[:80]!r} is not a record")
    fields = dict(word.split("=", 1) for word in line.split())
    if next(iter(fields)) not in ("SwitchName", "BlockName", "AggregatedBlock"):
        raise SourceError(
            f"scontrol show topology: {line[:80]!r} is of neither topology/tree nor topology/block"
        )
    return fields


def _number(record: Mapping[str, str], key: str) -> int:
    text = record.get(key, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise SourceError(f"scontrol show topology: {key}={text[:20]!r} is not a number")
    return int(text)


class YamlTopology(NamedTuple):
    """What ``topology.yaml`` says; the defaults without a readable file."""

    default: str = "default"
    """Name of the first topology with ``cluster_default: true``, else of the first."""
    blocks: bool = False  # One of them has blocks.


def yaml_topology(path: Path) -> YamlTopology:
    """Read ``topology.yaml``."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return YamlTopology()
    return YamlTopology(_default_of(text), _BLOCKS.search(text) is not None)


def _default_of(text: str) -> str:
    names: list[str] = []
    for line in text.splitlines():
        if match := _NAME.match(line):
            names.append(match[1].strip("\"'"))
        elif names and _DEFAULT.match(line):
            return names[-1]
    return names[0] if names else "default"


def network_groups(
    switches: Sequence[SlurmSwitch], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Level name -> node -> name of its group, for as many levels as Slurm has.

    ``names``: names of the levels 0, 1, ... A node without a switch of a level keeps its group of
    the level below. Raises SourceError if a node is in two groups of one level.
    """
    depth = 1 + max((switch.level for switch in switches), default=-1)
    groups: dict[str, dict[str, str]] = {}
    below: dict[str, str] = {}
    for level, name in enumerate(names[:depth]):
        here: dict[str, str] = {}
        for switch in (switch for switch in switches if switch.level == level):
            for node in switch.nodes:
                if here.setdefault(node, switch.name) != switch.name:
                    raise SourceError(
                        f"node {node} is below two switches of level {level}: "
                        f"{here[node]} and {switch.name}"
                    )
        below = groups[name] = below | here
    return groups


@dataclass(frozen=True)
class Fabric:
    """Groups of nodes of which a job on several nodes must not leave one.

    As in slurmctld (eval_nodes_block.c, eval_nodes_tree.c; measured: docs/internals/slurm.md):

    - **topology/block**: the number of nodes decides the size of the block that must hold the job;
      up to the base BlockSize it is one base block. A node in no block gets no jobs.
    - **topology/tree**: all nodes must be below one switch. One below no switch reaches no other.
    """

    kind: str = ""  # `BLOCK`, `TREE`; empty: no groups.
    groups: Mapping[str, str] = field(default_factory=dict)
    """Node -> its base block, or the topmost switch above it."""
    block_size: int = 0  # Base BlockSize.
    doubt: str | None = None  # Why the groups are not clear; None: they are.

    def of(self, nodes: Sequence[str]) -> NodeGroups | None:
        """Groups of these nodes, numbered in their order; None: no job is bound by them."""
        if not self.kind:
            return None
        # Of a tree, a node below no switch is a group of its own; of blocks, it is in none.
        names = [self.groups.get(node, f"/{node}" if self.kind == TREE else "") for node in nodes]
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
    size = min((b.block_size or 0 for b in blocks), default=0)
    return Fabric(BLOCK if blocks else TREE, groups, size, doubt)


class Network:
    """The network as last read; empty before the first answer. ``names``: of levels 0, 1, ..."""

    def __init__(self, read: Callable[[], Sequence[SlurmSwitch]], names: Sequence[str]) -> None:
        self._read = read
        self._names = names
        self._groups: dict[str, dict[str, str]] = {}
        self.fabric = Fabric()
        """Node groups of jobs on several nodes."""
        self._read_at = -float("inf")
        self._logged: str | None = None

    def groups(
        self, used: Collection[str], timer: Callable[[], float]
    ) -> Mapping[str, Mapping[str, str]]:
        """Level name -> node -> group; read once a minute, with ``fabric``.

        If it cannot be read, or not quickly, the last network counts. A complaint is logged once; a
        missing level is one only if it is ``used``.
        """
        if timer() - self._read_at > _AGAIN_S:
            first, self._read_at = self._read_at < 0, timer()
            thread = threading.Thread(target=self._refresh, args=(used,), name="network")
            thread.daemon = True
            thread.start()
            thread.join(None if first else _WAIT_S)
        return self._groups

    def _refresh(self, used: Collection[str]) -> None:
        complaint = None
        try:
            switches = self._read()
            self.fabric = fabric_of(switches)
            self._groups = network_groups(switches, self._names)
            lacking = [name for name in self._names if name in used and name not in self._groups]
            if lacking:
                levels = ", ".join(lacking)
                complaint = f"Slurm's topology has no level {levels}; locality counts without it"
        except SourceError as exc:
            complaint = f"the network cannot be read: {exc}; the last known one counts"
        if complaint is not None and complaint != self._logged:
            log.warning("%s", complaint)
        self._logged = complaint


class Place(NamedTuple):
    """Where a node is."""

    rack: str
    position: int  # The last number of its name, or counted from 1 in its rack.


def places(
    nodes: Iterable[str], switches: Sequence[SlurmSwitch]
) -> tuple[Mapping[str, Place], str]:
    """Node -> place, and a sentence without a full stop that says where it comes from.

    ``switches``: Slurm's topology; a leaf switch or block is a rack. Without one ``c002-011`` is in
    rack ``c002``, and names with one number are cut into groups of 16.
    """
    names = sorted(set(nodes), key=by_number)
    leaf_of = {node: s.name for s in switches if s.level == 0 for node in s.nodes}
    if leaf_of.keys() & set(names):
        racks = {node: leaf_of.get(node, "elsewhere") for node in names}
        return _counted(racks), "racks are the leaf switches or blocks of Slurm's topology"
    split = {node: _split(node) for node in names}
    if any(any(c.isdigit() for c in stem) for stem, _ in split.values()):
        how = "racks are what the node names have before their last number"
        numbers = [number for _, number in split.values()]
        if max(numbers) - min(numbers) < _MOST_APART:
            return {node: Place(*place) for node, place in split.items()}, how
        return _counted({node: stem for node, (stem, _) in split.items()}), how
    groups: dict[str, list[str]] = {}
    for node, (stem, _) in split.items():
        groups.setdefault(stem, []).append(node)
    racks = {
        node: f"{own[k - k % _IN_RACK]}.." for own in groups.values() for k, node in enumerate(own)
    }
    how = f"the names tell no racks, so groups of {_IN_RACK} nodes in the order of their names"
    return _counted(racks), how


def _split(node: str) -> tuple[str, int]:
    """``c002-011`` -> (c002, 11), ``node7`` -> (node, 7), ``login`` -> (login, 0)."""
    match = _LAST_NUMBER.match(node)
    return (match[1].rstrip("-_."), int(match[2])) if match else (node, 0)


def _counted(racks: Mapping[str, str]) -> dict[str, Place]:
    count: dict[str, int] = {}
    found = {}
    for node, rack in racks.items():
        count[rack] = count.get(rack, 0) + 1
        found[node] = Place(rack, count[rack])
    return found
