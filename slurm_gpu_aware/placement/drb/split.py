"""Recursive bipartition of a node, same socket first (Topo-aware in MAPA's comparison).

The GPUs of a node are halved by sockets, then inside a socket along the least cut of link
bandwidth. A job goes to a half that holds it, to the fuller one if both do. Otherwise it fills the
half with more free GPUs and takes the rest from the other.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.cells import Cell
from slurm_gpu_aware.placement.selection.base import Choice
from slurm_gpu_aware.placement.selection.by_scores import ByScores
from slurm_gpu_aware.placement.selection.links import kinds_of
from slurm_gpu_aware.placement.selection.rows import left_beside
from slurm_gpu_aware.topology.bandwidth import preserved_bw
from slurm_gpu_aware.topology.distances import sockets_of
from slurm_gpu_aware.topology.subsets import MAX_EXACT, mask_of, masks_of_size, slots_of


@lru_cache(maxsize=4096)
def bisect(graph: HardwareGraph, gpus: int) -> tuple[int, int]:
    """Split GPUs (a mask) in two: by socket if they lie on several, else by the least cut.

    Of equal cuts the one with the lowest indices together wins. Returns masks, the one with the
    lowest GPU first.
    """
    slots, sockets = slots_of(gpus), sockets_of(graph, gpus)
    if len(sockets) > 1:
        first = sum(sockets[: (len(sockets) + 1) // 2])
        return (first, gpus ^ first) if first & (gpus & -gpus) else (gpus ^ first, first)
    half = (len(slots) + 1) // 2
    if len(slots) > MAX_EXACT:
        first = mask_of(slots[:half])
        return first, gpus ^ first
    part = graph.subgraph(slots)
    masks = masks_of_size(part.n, half)
    masks = masks[masks & 1 == 1]
    full = (1 << part.n) - 1
    inside = preserved_bw(part, full, masks) + preserved_bw(part, full, full ^ masks)
    first = mask_of([slots[i] for i in slots_of(int(masks[int(np.argmax(inside))]))])
    return first, gpus ^ first


@lru_cache(maxsize=1 << 14)
def socket_first(graph: HardwareGraph, node: int, allowed: int, k: int) -> int:
    """Mask of ``k`` allowed GPUs by recursive bipartition of the GPUs in ``node`` (a mask)."""
    if k == 0 or allowed.bit_count() == k:
        return allowed if k else 0
    first, second = bisect(graph, node)
    free = (allowed & first).bit_count(), (allowed & second).bit_count()
    fitting = [(count, i) for i, count in enumerate(free) if count >= k]
    if fitting:
        half = (first, second)[min(fitting)[1]]
        return socket_first(graph, half, allowed & half, k)
    more, less = (first, second) if free[0] >= free[1] else (second, first)
    rest = k - (allowed & more).bit_count()
    return (allowed & more) | socket_first(graph, less, allowed & less, rest)


def choose_by_sockets(cell: Cell) -> Choice:
    """The node where the job spans the fewest sockets, then best fit, then the lowest index.

    A plain node counts with the most sockets. For several or whole nodes best fit decides.
    """
    if cell.split.nodes != 1 or cell.supply.request.whole_node:
        return ByScores().choose(cell)
    kinds, k = kinds_of(cell), cell.split.per_node
    masks = [
        mask_of(slots_of(allowed)[:k])
        if plain
        else socket_first(graph, (1 << graph.n) - 1, allowed, k)
        for graph, _, allowed, plain in kinds.each
    ]
    spanned = [
        min(k, len(sockets_of(kind.graph, kind.allowed if kind.plain else mask)))
        for kind, mask in zip(kinds.each, masks, strict=True)
    ]
    sockets = np.array(spanned, dtype=np.int64)[kinds.of_row]
    rows = np.flatnonzero(sockets == sockets.min())
    left = left_beside(cell)[rows]
    rows = rows[left == left.min()]
    row = rows[np.argmin(cell.units[rows])]
    slots = slots_of(masks[kinds.of_row[row]])
    return Choice((cell.units.item(row),), (slots,), sets=len(cell.units), ties=len(rows))
