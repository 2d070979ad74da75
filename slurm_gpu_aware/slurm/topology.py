"""Network of Slurm: the groups of each level, from `scontrol show topology`.

Slurm 24.11 and 26.05 write one record a line, and no line without a topology (topology/default,
topology/flat)::

    SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
    SwitchName=r0 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]
    BlockName=b0 BlockIndex=0 Nodes=n[1-2] BlockSize=2
    AggregatedBlock=b[0-1] BlockIndex=4 Nodes=n[1-4] BlockSize=4

A switch is one level above its highest child, so a leaf switch can be below one of level 2. Each
size of aggregated blocks is a level. Of several topologies (topology.yaml) the default one is
shown.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.fabric import Fabric, fabric_of
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import SlurmSwitch

__all__ = ["Network", "network_groups", "parse_topology"]

log = logging.getLogger(__name__)

_RECORD = re.compile(r"(?:[A-Za-z]+=[^\s=]+ ?)+\Z")
_AGAIN_S = 60.0
"""The topology is read again after this time."""


def parse_topology(text: str) -> list[SlurmSwitch]:
    """Switches or blocks.

    Raises
    ------
    SourceError
        A line is not a record of topology/tree or topology/block.
    """
    records = [_fields(line) for line in text.splitlines() if line.strip()]
    sizes = sorted({_number(r, "BlockSize") for r in records if "AggregatedBlock" in r})
    switches = []
    for record in records:
        nodes = frozenset(expand_hostlist(record.get("Nodes", "")))
        if "SwitchName" in record:
            switches.append(SlurmSwitch(record["SwitchName"], _number(record, "Level"), nodes))
            continue
        size = _number(record, "BlockSize")
        if "BlockName" in record:
            switches.append(SlurmSwitch(record["BlockName"], 0, nodes, size))
        else:
            level = 1 + sizes.index(size)
            switches.append(SlurmSwitch(record["AggregatedBlock"], level, nodes, size))
    return switches


def network_groups(
    switches: Sequence[SlurmSwitch], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Level name -> node -> name of its group, for as many levels as Slurm has.

    ``names``: names of the levels 0, 1, ... A node without a switch of a level keeps its group of
    the level below.

    Raises
    ------
    SourceError
        A node is in two groups of one level.
    """
    depth = 1 + max((switch.level for switch in switches), default=-1)
    groups: dict[str, dict[str, str]] = {}
    below: dict[str, str] = {}
    for level, name in enumerate(names[:depth]):
        here: dict[str, str] = {}
        for switch in switches:
            if switch.level != level:
                continue
            for node in switch.nodes:
                if here.setdefault(node, switch.name) != switch.name:
                    raise SourceError(
                        f"node {node} is below two switches of level {level}: "
                        f"{here[node]} and {switch.name}"
                    )
        below = groups[name] = below | here
    return groups


class Network:
    """The network as last read; empty before the first answer."""

    def __init__(self, client: SlurmClient, names: Sequence[str]) -> None:
        self._client = client
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

        If it cannot be read, the last network counts. A complaint is logged once; a missing level
        is one only if it is ``used``.
        """
        wanted = [name for name in self._names if name in used]
        if timer() - self._read_at > _AGAIN_S:
            self._read_at = timer()
            self._log(self._read(wanted))
        return self._groups

    def _read(self, wanted: Collection[str]) -> str | None:
        """Read the network; return the complaint, if any."""
        try:
            switches = self._client.topology()
            self.fabric = fabric_of(switches)
            self._groups = network_groups(switches, self._names)
        except SourceError as exc:
            return f"the network cannot be read: {exc}; the last known one counts"
        lacking = [name for name in wanted if name not in self._groups]
        if not lacking:
            return None
        return f"Slurm's topology has no level {', '.join(lacking)}; locality counts without it"

    def _log(self, complaint: str | None) -> None:
        if complaint is not None and complaint != self._logged:
            log.warning("%s", complaint)
        self._logged = complaint


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
