"""Plan of the runs that measure locality penalties: which nodes, at which level.

All runs have the same number of GPUs. The reference is inside a node; at each level of the network
pairs of nodes are taken that share a group of this level and of no tighter one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from slurm_gpu_aware.model.penalties import NETWORK_LEVELS

REFERENCE = "node"
_WIDEST = "cluster"
T = TypeVar("T")


class PlanNode(NamedTuple):
    """A node that may take part."""

    name: str
    gpus: int
    model: str
    """GPU model; empty: not known."""
    partition: str
    fabric: str = ""
    """Jobs on several nodes must not leave it (`slurm.topology.Fabric`)."""


class LevelRun(NamedTuple):
    """One job of the measurement."""

    level: str
    """Tightest level that holds its GPUs."""
    nodes: tuple[PlanNode, ...]
    """One, or two that get half of the GPUs each."""
    gpus: int

    @property
    def gpus_per_node(self) -> int:
        """Ranks on each node."""
        return self.gpus // len(self.nodes)


def level_plan(
    nodes: Sequence[PlanNode],
    groups: Mapping[str, Mapping[str, str]],
    pairs: int,
    gpus: int | None = None,
) -> list[LevelRun]:
    """Runs per model: the nodes of the pairs first, then up to ``pairs`` pairs of each level.

    ``groups``: level -> node -> group (`slurm.topology.network_groups`). ``gpus``: of each run,
    even; None: as many as the smallest node of the model has. Models without a pair are left out.

    Raises ValueError if ``gpus`` is odd, below 2, or more than a node has.
    """
    if gpus is not None and (gpus < 2 or gpus % 2):
        raise ValueError(f"a run is divided over two nodes, so it has an even number, not {gpus}")
    of_model: dict[str, list[PlanNode]] = {}
    for node in nodes:
        of_model.setdefault(node.model, []).append(node)
    plan = []
    for model, own in sorted(of_model.items()):
        least = min(node.gpus for node in own)
        if gpus is not None and gpus > least:
            raise ValueError(f"a node with {model or 'GPUs'} has {least} GPUs, fewer than {gpus}")
        count = gpus or least // 2 * 2
        found = _pairs_by_level(own, groups, pairs)
        if count < 2 or not any(found.values()):
            continue
        taken = dict.fromkeys(node for level in found.values() for pair in level for node in pair)
        plan += [LevelRun(REFERENCE, (node,), count) for node in list(taken)[: 2 * pairs]]
        plan += [LevelRun(level, pair, count) for level in found for pair in found[level]]
    return plan


def _pairs_by_level(
    nodes: Sequence[PlanNode], groups: Mapping[str, Mapping[str, str]], most: int
) -> dict[str, list[tuple[PlanNode, PlanNode]]]:
    """Level -> pairs, tightest level first."""
    levels = [name for name in NETWORK_LEVELS if name in groups]
    found = {}
    for i, level in enumerate([*levels, _WIDEST]):
        buckets: dict[tuple[str, ...], dict[str, list[PlanNode]]] = {}
        for node in nodes:
            outer = "" if level == _WIDEST else groups[level].get(node.name)
            # The group of the next tighter level; a node without one is a group of its own.
            inner = groups[levels[i - 1]].get(node.name) if i else None
            if outer is not None:
                bucket = buckets.setdefault((node.partition, node.fabric, outer), {})
                bucket.setdefault(inner or f"/{node.name}", []).append(node)
        pairs = _alternately(_pairs(bucket.values()) for bucket in buckets.values())
        found[level] = list(islice(pairs, most))
    return found


def _pairs(parts: Collection[Sequence[PlanNode]]) -> Iterator[tuple[PlanNode, PlanNode]]:
    """Pairs of nodes of different parts, each node once."""
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    first: PlanNode | None = None
    for node in _alternately(iter(part) for part in parts):
        if first is None:
            first = node
        elif part_of[first] != part_of[node]:
            yield first, node
            first = None


def _alternately(iterators: Iterable[Iterator[T]]) -> Iterator[T]:
    """First of each, then second of each, ..."""
    waiting = list(iterators)
    while waiting:
        going_on = []
        for one in waiting:
            for value in islice(one, 1):
                going_on.append(one)
                yield value
        waiting = going_on


def gpu_indices(on_node: int, wanted: int) -> list[int]:
    """GPUs of a node for a run: evenly spread, so that they need the whole node."""
    return [i * on_node // wanted for i in range(wanted)]
