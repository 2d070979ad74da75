"""Racks: where nodes are, by Slurm's topology, else by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.slurm.words import by_number

_LAST_NUMBER = re.compile(r"(.*?)(\d{1,9})\D*\Z")
_MOST_APART = 128
"""Numbers that are further apart are no positions in racks."""
_IN_RACK = 16
"""Nodes that a rack is taken to have if the names do not say it."""


class Place(NamedTuple):
    """Where a node is."""

    rack: str
    position: int
    """The last number of its name, or counted from 1 in its rack."""


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
