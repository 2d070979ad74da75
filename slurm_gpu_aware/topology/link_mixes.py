"""Distinct link mixes: sets of GPUs whose links differ in more than the GPUs' numbers.

Two sets have the same mix if one can be renumbered so that all links (class and bandwidth) agree:
an isomorphism of complete graphs with labelled edges. Measuring one set of each mix is enough.

Sets are grouped by a hash that renumbering does not change (colour refinement, Weisfeiler and Leman
1968), then compared exactly. Sets that become equal matrices when their GPUs are sorted by colour
are compared once, which leaves few comparisons on real machines.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology.bandwidth import EQ2_TERMS, eq2_terms
from slurm_gpu_aware.topology.matching import fitted_ring
from slurm_gpu_aware.topology.subsets import MAX_EXACT, masks_of_size, members_of_size

_Words = npt.NDArray[np.uint64]
_Labels = npt.NDArray[np.int64]


class LinkMix(NamedTuple):
    """A distinct mix of links."""

    gpus: tuple[int, ...]  # The first set with this mix: the one with the lowest GPUs.
    sets: int  # How many sets of the machine have it.


def link_mixes(graph: HardwareGraph, counts: Iterable[int]) -> list[LinkMix]:
    """Distinct mixes of the sets of so many GPUs, smaller sets first, then by their lowest set.

    Of a machine of more than 16 GPUs, the sets of its first 16 ones. Sizes beyond the machine are
    left out.
    """
    part = graph.subgraph(range(min(graph.n, MAX_EXACT)))
    labels = _labels(part)
    return [
        mix
        for count in sorted(set(counts))
        if 1 <= count <= part.n
        for mix in _mixes_of_size(labels, count)
    ]


def informative_order(graph: HardwareGraph, mixes: Sequence[LinkMix]) -> list[LinkMix]:
    """The mixes, most informative for a fit of eq. 2 first.

    Each next one adds most to the space that the terms of the mixes before it span (QR with column
    pivoting). When no mix adds anything, those with other counts of links follow, then the others;
    of these those that stand for the most sets come first.
    """
    rings = np.array([fitted_ring(graph, mix.gpus) for mix in mixes], dtype=np.float64)
    rest = eq2_terms(*rings.reshape(-1, 3).T)
    rest /= np.maximum(np.abs(rest).max(axis=0, initial=0.0), 1e-300)
    first: list[int] = []
    for _ in range(min(len(EQ2_TERMS), len(mixes))):
        lengths = np.linalg.norm(rest, axis=1)
        best = int(lengths.argmax())
        if lengths[best] < 1e-9:
            break
        first.append(best)
        direction = rest[best] / lengths[best]
        rest = rest - np.outer(rest @ direction, direction)
    seen = {tuple(rings[i]) for i in first}
    repeated = []
    for i in sorted(set(range(len(mixes))) - set(first), key=lambda i: -mixes[i].sets):
        if tuple(rings[i]) in seen:
            repeated.append(i)
        else:
            seen.add(tuple(rings[i]))
            first.append(i)
    return [mixes[i] for i in (*first, *repeated)]


def _labels(graph: HardwareGraph) -> _Labels:
    """(n, n) numbers of the links; equal links (class and GB/s) have the same one."""
    known: dict[tuple[str, float], int] = {}
    n = graph.n
    rows = [
        [
            known.setdefault((graph.classes[i][j], graph.gbps.item(i, j)), len(known))
            for j in range(n)
        ]
        for i in range(n)
    ]
    return np.array(rows, dtype=np.int64).reshape(n, n)


def _mixes_of_size(labels: _Labels, size: int) -> Iterable[LinkMix]:
    n = labels.shape[0]
    members = members_of_size(n, size).T
    if n > 1 and np.unique(labels[np.triu_indices(n, 1)]).size == 1:
        return [LinkMix(tuple(members[0].tolist()), masks_of_size(n, size).size)]
    links = labels[members[:, :, None], members[:, None, :]]
    colours = _colours(links)
    order = np.argsort(colours, axis=1, kind="stable")
    links = np.take_along_axis(
        np.take_along_axis(links, order[:, :, None], 1), order[:, None, :], 2
    )
    colours = np.take_along_axis(colours, order, axis=1)
    flat = np.concatenate([colours.view(np.int64), links.reshape(len(links), -1)], axis=1)
    _, firsts, counts = np.unique(flat, axis=0, return_index=True, return_counts=True)
    found: dict[bytes, list[tuple[int, int]]] = {}
    for at, count in sorted(zip(firsts.tolist(), counts.tolist(), strict=True)):
        same_hash = found.setdefault(colours[at].tobytes(), [])
        for position, (first, sets) in enumerate(same_hash):
            if _isomorphic(links[first], links[at], colours[first], colours[at]):
                same_hash[position] = first, sets + count
                break
        else:
            same_hash.append((at, count))
    all_found = sorted(entry for group in found.values() for entry in group)
    return [LinkMix(tuple(members[first].tolist()), sets) for first, sets in all_found]


def _colours(links: _Labels) -> _Words:
    """(M, k) colour of each GPU in each of M sets: a hash of its links and of its peers'."""
    k = links.shape[1]
    coded = _mixed(links.astype(np.uint64))
    coded[:, np.arange(k), np.arange(k)] = 0
    colours = np.zeros(links.shape[:2], dtype=np.uint64)
    for _ in range(3):
        # A sum does not depend on the order of the peers.
        colours = _mixed(colours) + _mixed(coded + colours[:, None, :]).sum(axis=2)
    return colours


def _mixed(values: _Words) -> _Words:
    """SplitMix64, which spreads values over 64 bits (Steele et al., OOPSLA'14)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _isomorphic(a: _Labels, b: _Labels, of_a: _Words, of_b: _Words) -> bool:
    """Whether ``b`` can be renumbered to ``a``, GPUs of equal colours onto each other."""
    k = len(a)
    chosen: list[int] = []

    def extend() -> bool:
        at = len(chosen)
        if at == k:
            return True
        for gpu in range(k):
            if gpu in chosen or of_a[at] != of_b[gpu]:
                continue
            if all(a[at, i] == b[gpu, other] for i, other in enumerate(chosen)):
                chosen.append(gpu)
                if extend():
                    return True
                chosen.pop()
        return False

    return extend()
