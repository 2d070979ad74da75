"""Buddy allocation: GPU counts in powers of two on nodes, packed on as few nodes as possible."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["idle_nodes", "pack"]


def pack(sizes: Sequence[int], free: Sequence[int], width: int) -> list[tuple[int, ...]] | None:
    """Nodes of each job, or None if the jobs do not fit together.

    Parameters: ``sizes``, GPUs of each job; ``free``, free GPUs of each node; ``width``, GPUs of a
    node. A job of ``width`` GPUs or more takes whole nodes, the last one in part if its size is no
    multiple of ``width``. A smaller job takes one node: of those on which it fits, the one with the
    fewest free GPUs, so that other nodes stay idle (PowerFlow's network packing).

    Jobs are taken by size, largest first. If sizes and ``width`` are powers of two this is exact:
    a job of s GPUs lowers the number of free blocks of each smaller power of two by the same
    amount, whichever node it takes.
    """
    nodes_with: list[list[int]] = [[] for _ in range(max(width, *free, 0) + 1)]
    for node in reversed(range(len(free))):
        nodes_with[free[node]].append(node)
    places: list[tuple[int, ...]] = [()] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        whole, rest = divmod(sizes[i], width)
        for part in [width] * whole + [rest] * (rest > 0):
            fits = next((k for k in range(part, len(nodes_with)) if nodes_with[k]), None)
            if fits is None:
                return None
            node = nodes_with[fits].pop()
            nodes_with[fits - part].append(node)
            places[i] += (node,)
    return places


def idle_nodes(sizes: Sequence[int], gpus: int, width: int) -> int:
    """Nodes that stay without a job when the jobs are packed on an empty cluster of ``gpus`` GPUs.

    0 if the jobs do not fit on its nodes.
    """
    whole, rest = divmod(gpus, width)
    free = [width] * whole + [rest] * (rest > 0)
    places = pack(sizes, free, width)
    return 0 if places is None else len(free) - len({node for nodes in places for node in nodes})
