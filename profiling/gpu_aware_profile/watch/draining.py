"""Which nodes to drain and to resume: a pure function of states, Slurm's view, and a budget."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from slurm_gpu_aware.bounds import is_node_name
from slurm_gpu_aware.slurm.words import parse_duration
from slurm_gpu_aware.store.watch_state import ILL, PREFIX, SLOW, STATES, Drained, GpuState

AGAIN = f"{PREFIX}not yet well again"  # Reason of a node that was on trial when a pass was cut off.
WORTH = (ILL, SLOW)
"""States for which a node is drained: ill and slow. A GPU that drifted, or that only throttles
under a user's job, is reported only."""
_LONGEST = 200
_DRAINED = frozenset({"drain", "drained", "draining"})


class Node(NamedTuple):
    """A node as Slurm shows it."""

    name: str
    partitions: tuple[str, ...]  # The one that allows the longest jobs first.
    state: str  # Base state in lower case, without flags.
    reason: str  # Why it is drained or down; empty: no reason.

    @property
    def drained(self) -> bool:
        """Whether it takes no jobs by an admin's or a program's wish."""
        return self.state in _DRAINED

    @property
    def ours(self) -> bool:
        """Whether watch drained it."""
        return self.drained and self.reason.startswith(PREFIX)


@dataclass(frozen=True)
class Budget:
    """Bounds of what watch may drain. Raises ValueError."""

    nodes: int = 2  # Nodes of the site.
    percent: float = 10.0  # Share of the nodes of each partition, rounded down.

    def __post_init__(self) -> None:
        if self.nodes < 0 or not 0.0 <= self.percent <= 100.0:
            raise ValueError("nodes must be at least 0, percent between 0 and 100")


@dataclass(frozen=True)
class DrainPlan:
    """What to do."""

    drain: tuple[tuple[str, str], ...] = ()  # (node, reason), worst first.
    resume: tuple[str, ...] = ()
    held_back: tuple[tuple[str, str], ...] = ()
    """(node, why it is not drained although it should be)."""
    drained: Mapping[str, Drained] = field(default_factory=dict)  # What to remember.


def parse_nodes(text: str) -> list[Node]:
    """Lines ``node|partition|state|time limit|reason`` of sinfo, one per node and partition.

    The reason comes last, as an admin may write the separator in it.
    """
    found: dict[str, Node] = {}
    of_node: dict[str, list[tuple[float, str]]] = {}
    for line in text.splitlines():
        fields = line.strip().split("|", 4)
        if len(fields) != 5 or not is_node_name(fields[0]):
            continue
        name, partition, state, limit, reason = fields
        word = state.lower().strip().rstrip("*~#!%$@^-+")
        reason = "" if reason.strip() == "none" else reason.strip()
        own = of_node.setdefault(name, [])
        own.append((parse_duration(limit.upper()), partition.rstrip("*")))
        own.sort(key=itemgetter(0), reverse=True)
        found[name] = Node(name, tuple(one for _, one in own), word, reason)
    return list(found.values())


def reason_of(own: Sequence[GpuState]) -> str:
    """``gpu-aware: GPU 3 slow: class A: 3.1% slower than its peers``, one line."""
    first = own[0]
    more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
    text = f"{PREFIX}GPU {first.gpu} {first.state}{more}: {first.why}"
    return "".join(c if c.isprintable() and c not in "\"'|" else " " for c in text)[:_LONGEST]


def plan_drains(
    states: Iterable[GpuState],
    nodes: Sequence[Node],
    before: Mapping[str, Drained],
    budget: Budget,
    now: float,
    on_trial: Collection[str] = (),
) -> DrainPlan:
    """Decide. ``before``: nodes that watch drained, and has not resumed.

    ``on_trial``: those of them that watch let take its own jobs, and could not drain again: no
    admin has resumed them. They are drained again first, unless they are well.

    A node is drained if a GPU of it is ill or slow, at most ``budget``; ill ones go first, then the
    slowest. It is resumed when none of its GPUs is, by readings since the drain. A node that an
    admin resumed meanwhile is left alone until it was well once.
    """
    of_node: dict[str, list[GpuState]] = {}
    for one in sorted(states, key=_badness):
        of_node.setdefault(one.node, []).append(one)
    ours = [node for node in nodes if node.ours]
    resume = tuple(node.name for node in ours if _well(of_node.get(node.name, ()), before, node))
    again = [
        node
        for node in nodes
        if node.name in on_trial
        and not node.drained
        and not _well(of_node.get(node.name, ()), before, node)
    ]
    remembered = _remembered(before, nodes, of_node, resume, now)
    remembered |= {node.name: before.get(node.name, Drained(now)) for node in again}
    room = _Room(nodes, [*(node for node in ours if node.name not in resume), *again], budget)
    drain: list[tuple[str, str]] = []
    for node in again:
        worth = [one for one in of_node.get(node.name, ()) if _worth(one)]
        drain.append((node.name, reason_of(worth) if worth else AGAIN))
    done = {*resume, *(name for name, _ in drain)}
    held: list[tuple[str, str]] = []
    by_name = {node.name: node for node in nodes}
    for name, own in sorted(of_node.items(), key=lambda item: _badness(item[1][0])):
        worth = [one for one in own if _worth(one)]
        there = by_name.get(name)
        if not worth or there is None or there.drained or name in done:
            continue
        if name in remembered and remembered[name].left:
            held.append((name, "an admin resumed it; left alone until it was well"))
        elif why := room.full(there):
            held.append((name, why))
        else:
            room.take(there)
            drain.append((name, reason_of(worth)))
            remembered[name] = Drained(now)
    return DrainPlan(tuple(drain), resume, tuple(held), remembered)


def _worth(one: GpuState) -> bool:
    """Whether the GPU is a reason to drain its node."""
    return one.state in WORTH and not one.only_under_jobs


def _badness(one: GpuState) -> tuple[int, float, str, int]:
    rank = len(STATES) if one.only_under_jobs else STATES.index(one.state)
    return rank, -(one.by or 0.0), one.node, one.gpu


def _well(own: Sequence[GpuState], before: Mapping[str, Drained], node: Node) -> bool:
    """Whether a node that we drained may take jobs again."""
    # Without a record of ours (a lost file) any probe counts
    since = before[node.name].at if node.name in before else -math.inf
    return bool(own) and all(
        not _worth(one) and one.reading.health is not None and one.reading.at > since for one in own
    )


def _remembered(
    before: Mapping[str, Drained],
    nodes: Sequence[Node],
    of_node: Mapping[str, Sequence[GpuState]],
    resume: Collection[str],
    now: float,
) -> dict[str, Drained]:
    """Nodes that are still drained by us, or that an admin resumed before they were well."""
    kept: dict[str, Drained] = {}
    for node in nodes:
        bad = any(map(_worth, of_node.get(node.name, ())))
        if node.ours and node.name not in resume:
            kept[node.name] = before.get(node.name, Drained(now))
        elif node.name in before and not node.drained and bad:
            kept[node.name] = Drained(before[node.name].at, left=True)
    return kept


class _Room:
    """What is left of a budget."""

    def __init__(self, nodes: Iterable[Node], drained: Iterable[Node], budget: Budget) -> None:
        self._budget = budget
        self._sizes = Counter(p for node in nodes for p in node.partitions)
        self._taken = 0
        self._of_partition: Counter[str] = Counter()
        for node in drained:
            self.take(node)

    def take(self, node: Node) -> None:
        self._taken += 1
        self._of_partition.update(node.partitions)

    def full(self, node: Node) -> str:
        """Why the node may not be drained; empty: it may."""
        if self._taken >= self._budget.nodes:
            return f"budget: {self._taken} of at most {self._budget.nodes} nodes are drained"
        for partition in node.partitions:
            size = self._sizes[partition]
            most = math.floor(size * self._budget.percent / 100.0 + 1e-9)
            if self._of_partition[partition] >= most:
                share = f"{self._budget.percent:g}% of the {size} nodes of {partition}"
                return f"budget: at most {share}, which is {most}"
        return ""
