"""Fiduccia-Mattheyses bipartition of a weighted graph.

C. M. Fiduccia, R. M. Mattheyses, "A linear-time heuristic for improving network partitions",
DAC 1982. In a pass each vertex moves once, in the order of the largest gain that keeps the balance,
and the best prefix of the moves is kept. Passes repeat until one has no gain.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray

__all__ = ["cut_weight", "fm_bipartition", "fm_improve"]

_STARTS = 8
_EPS = 1e-9


def cut_weight(weights: FloatArray, side: BoolArray) -> float:
    """Sum of the weights of edges between the two sides."""
    return float(weights[np.ix_(side, ~side)].sum())


def fm_bipartition(weights: FloatArray, sizes: tuple[int, int]) -> BoolArray:
    """Split the vertices in two by a small cut.

    Parameters
    ----------
    weights : (n, n) symmetric, >= 0, zero diagonal; ``weights[i, j]`` is the cost of cutting i-j.
    sizes : least and largest number of vertices on the side of vertex 0, within 1..n-1.

    Returns
    -------
    (n,) True for the side of vertex 0.

    Raises
    ------
    ValueError
        The matrix is not symmetric or the sizes are impossible.

    Notes
    -----
    A local optimum, the best of up to 8 starts (runs of vertices and greedily grown sides);
    deterministic. A pass costs O(n^2): a move updates the array of gains in one vector operation,
    which replaces FM's buckets on dense graphs.

    Examples
    --------
    >>> pairs = np.array([[0, 9, 1, 1], [9, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0.0]])
    >>> fm_bipartition(pairs[np.ix_([0, 2, 1, 3], [0, 2, 1, 3])], (2, 2)).tolist()
    [True, False, True, False]
    """
    n = len(weights)
    low, high = sizes
    if weights.shape != (n, n) or (weights != weights.T).any():
        raise ValueError("weights must be a symmetric matrix")
    if not 1 <= low <= high <= n - 1:
        raise ValueError(f"cannot split {n} vertices with {low} to {high} on one side")
    best: BoolArray | None = None
    least = np.inf
    for start in _starts(weights, low):
        side = fm_improve(weights, start, sizes)
        cut = cut_weight(weights, side)
        if cut < least - _EPS:
            best, least = side, cut
    assert best is not None  # noqa: S101 - there is at least one start
    return best


def fm_improve(weights: FloatArray, side: BoolArray, sizes: tuple[int, int]) -> BoolArray:
    """Repeat passes from the start ``side`` until none reduces the cut. Vertex 0 does not move.

    ``side`` has an allowed number of True and is not changed.
    """
    side = side.copy()
    while True:
        moves, gained = _one_pass(weights, side, sizes)
        if gained <= _EPS:
            return side
        side[moves] = ~side[moves]


def _one_pass(
    weights: FloatArray, start: BoolArray, sizes: tuple[int, int]
) -> tuple[list[int], float]:
    """The best prefix of one pass, and its gain.

    Between moves the balance may be off by one vertex, as in FM; otherwise an exact bisection
    would allow no move.
    """
    low, high = sizes
    side = start.copy()
    across = side[:, None] != side[None, :]
    gains = np.where(across, weights, -weights).sum(axis=1)
    locked = np.zeros(len(side), dtype=np.bool_)
    locked[0] = True  # the sides are equal, so a fixed vertex loses no partition
    size, total, best, kept = int(side.sum()), 0.0, 0.0, 0
    moves: list[int] = []
    while not locked.all():
        out, into = size - 1 >= low - 1, size + 1 <= high + 1
        candidates = ~locked & (side if out and not into else ~side if into and not out else True)
        if not candidates.any():
            break
        vertex = int(np.where(candidates, gains, -np.inf).argmax())
        total += float(gains[vertex])
        size += -1 if side[vertex] else 1
        locked[vertex] = True
        gains += np.where(side == side[vertex], 2 * weights[vertex], -2 * weights[vertex])
        gains[vertex] = -gains[vertex]
        side[vertex] = ~side[vertex]
        moves.append(vertex)
        if low <= size <= high and total > best + _EPS:
            best, kept = total, len(moves)
    return moves[:kept], best


def _starts(weights: FloatArray, size: int) -> Iterator[BoolArray]:
    """Start partitions with ``size`` vertices on the side of vertex 0."""
    n = len(weights)
    for step in range(1, min(n, _STARTS // 2) + 1):
        yield _side(n, _in_steps(n, step)[:size])
    for seed in list(range(0, n, max(1, 2 * n // _STARTS)))[: _STARTS // 2]:
        yield _side(n, _grown(weights, seed, size))


def _in_steps(n: int, step: int) -> list[int]:
    return [v for offset in range(step) for v in range(offset, n, step)]


def _grown(weights: FloatArray, seed: int, size: int) -> list[int]:
    """``size`` vertices grown from 0 or, for another seed, the complement of those grown there."""
    n = len(weights)
    wanted = size if seed == 0 else n - size
    inside = [seed]
    pull = weights[seed].copy()
    pull[[0, seed]] = -np.inf
    while len(inside) < wanted:
        vertex = int(pull.argmax())
        inside.append(vertex)
        pull += weights[vertex]
        pull[vertex] = -np.inf
    return inside if seed == 0 else [v for v in range(n) if v not in set(inside)]


def _side(n: int, members: list[int]) -> BoolArray:
    side = np.zeros(n, dtype=np.bool_)
    side[members] = True
    return side
