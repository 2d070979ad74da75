"""The best sets and mappings for communication graphs that are too wide for ``general``.

Only the best sets are sought, not the value of every set. Each set has an upper bound that costs
little (the best links in it, and the best links of each of its GPUs, handed out to the job GPUs)
and a lower one from mappings that swaps find. Sets whose upper bound is below the best lower one
are out; for the few others ``bounded`` decides. A bottleneck is a question of the same kind: onto
which sets can the graph be laid with links of some bandwidth and more only.

Every search has a limit of states, not of time: the answer is the same on every computer. Where
the limit was met, ``complete`` is False and the answer is the best that was found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.topology.bounded import FORBIDDEN, NEVER, WAYS, Found, improve
from slurm_gpu_aware.topology.patterns import Edges
from slurm_gpu_aware.topology.subsets import masks_of_size, members_of_size
from slurm_gpu_aware.topology.swaps import swapped

__all__ = ["Best", "Layout", "best_by_bottleneck", "best_by_sum", "best_layout"]

_MOST_STATES = 1 << 22  # of one question: a few seconds
_ROUNDS = ((1 << 12, 128, 4), (1 << 16, 1024, 8), (1 << 20, 1024, 16))
"""States of one search, then mappings that swaps improve and how often they are shaken. What is
hard waits for the next round."""
_MANY = 32  # so many undecided sets are first searched at once
_EACH, _TOGETHER = 1 << 12, 1 << 20  # with so many states for each of them, at most
_FIRST = 256  # sets of the largest bounds, which are looked at first
_STARTS, _FEW_STARTS = 4, 2  # mappings that swaps improve, of these sets and of the others
_STEPS = 1024.0  # bandwidths are whole multiples of 1/1024 GB/s


@dataclass(frozen=True)
class Best:
    """The best sets."""

    gbps: float
    """What they have in common: sum or bottleneck."""
    sets: BoolArray
    """(C(n, k),) in tie order."""
    complete: bool
    """No set and no mapping is better, and no other set as good."""


@dataclass(frozen=True)
class Layout:
    """The best mapping onto all GPUs of a machine."""

    order: tuple[int, ...]
    """GPU of each job GPU."""
    complete: bool


class _Work:
    """States that may still be made for one question."""

    def __init__(self) -> None:
        self.left = _MOST_STATES
        self.complete = True

    def search(
        self, gains: IntArray, edges: Edges, k: int, floor: IntArray, most: int
    ) -> Found | None:
        """The first way of search that comes to an end within ``most`` states each."""
        exact = k == gains.shape[0] and not (gains == FORBIDDEN).any()
        for way in reversed(WAYS) if exact else WAYS[:2]:
            found = improve(gains, edges, k, floor, min(most, self.left), way)
            self.left -= found.work
            if found.complete:
                return found
        return None


def _whole(weights: FloatArray) -> tuple[IntArray, int, int]:
    """Gains over the least link in the largest unit, that link, the unit (both in 1/1024 GB/s)."""
    n = weights.shape[0]
    inside = ~np.eye(n, dtype=bool) & np.isfinite(weights)
    steps = np.rint(np.where(inside, weights, 0.0) * _STEPS).astype(np.int64)
    least = int(steps[inside].min(initial=np.iinfo(np.int64).max)) if inside.any() else 0
    unit = int(np.gcd.reduce((steps[inside] - least), initial=0)) or 1
    gains = np.where(inside, (steps - least) // unit, FORBIDDEN)
    np.fill_diagonal(gains, 0)
    return gains, least, unit


def _degrees(edges: Edges, k: int) -> IntArray:
    return np.bincount(np.array(edges).ravel(), minlength=k)


def _upper(gains: IntArray, edges: Edges, k: int) -> IntArray:
    """(C(n, k),) gain that no mapping onto the set exceeds."""
    members = members_of_size(gains.shape[0], k).T
    links = gains[members[:, :, None], members[:, None, :]]
    first, second = np.triu_indices(k, 1)
    most = np.sort(links[:, first, second], axis=1)[:, -len(edges) :].sum(axis=1)
    own = np.cumsum(np.sort(links, axis=2)[:, :, ::-1], axis=2)
    degrees = _degrees(edges, k)
    worth = np.where(degrees > 0, own[:, :, degrees - 1], 0)  # twice, of each job GPU on each GPU
    for axis in (1, 2):
        best = worth.max(axis=axis, keepdims=True)
        handed = best.sum(axis=(1, 2)) - (best - worth).min(axis=3 - axis).sum(axis=1)
        most = np.minimum(most, handed // 2)
    return np.asarray(most)


def _settle(
    gains: IntArray, edges: Edges, k: int, lower: IntArray, upper: IntArray, work: _Work
) -> None:
    """Raise ``lower`` and reduce ``upper`` until the best sets are those of the largest ``lower``.

    ``work`` tells whether that was reached.
    """
    members = members_of_size(gains.shape[0], k)
    for seed, (most, starts, shakes) in enumerate(_ROUNDS, start=1):
        best = max(int(lower.max()), 0)
        some = np.flatnonzero((upper >= best) & (upper > lower))
        if some.size and not (gains == FORBIDDEN).any():
            each = -(-starts // some.size)
            held, _ = swapped(gains, edges, members[:, some], each, shakes, seed)
            lower[some] = np.maximum(lower[some], held)
        tried, together = np.zeros(lower.size, dtype=np.bool_), 8 * most
        while True:
            best = max(int(lower.max()), 0)
            # Asked of a set that has the best: more? Of another one: as much?
            floor = np.where(lower == best, best, best - 1)
            undecided = (upper > floor) & ~tried
            if not undecided.any():
                break
            count = int(undecided.sum())
            if count >= _MANY and together:
                together, states = 0, min(_TOGETHER, max(count * _EACH, together))
                asked = np.where(undecided, floor, NEVER)
                found = work.search(gains, edges, k, asked, states)
                if found is not None:
                    lower[:] = np.maximum(lower, found.value)
                    upper[undecided] = np.maximum(lower, floor)[undecided]
                continue
            at = int(np.argmax(np.where(undecided, upper, -1)))
            inside = np.ix_(members[:, at], members[:, at])
            found = work.search(gains[inside], edges, k, floor[at : at + 1], most)
            if found is None:
                tried[at] = True
                if work.left <= 0:
                    work.complete = False
                    return
                continue
            lower[at] = max(lower[at], int(found.value[0]))
            upper[at] = max(int(lower[at]), int(floor[at]))
        if not tried.any():
            return
    work.complete = False


def best_by_sum(weights: FloatArray, edges: Edges, k: int, among: BoolArray | None = None) -> Best:
    """Sets with the largest sum over all mappings of the graph.

    Parameters
    ----------
    weights : (n, n) GB/s, whole multiples of 1/1024, symmetric, n <= 16.
    edges : pairs of job GPUs 0..k-1, each once, at least one.
    among : (C(n, k),) the sets that count, at least one; None: all.
    """
    gains, least, unit = _whole(weights)
    members = members_of_size(weights.shape[0], k)
    upper = _upper(gains, edges, k)
    if among is not None:
        upper[~among] = -1
    lower = np.full(upper.size, -1, dtype=np.int64)
    order, at, best = np.argsort(-upper, kind="stable"), 0, 0
    while at < len(order) and upper[order[at]] >= best:
        some = order[at : at + _FIRST * (1 if at == 0 else 4)]
        some = some[upper[some] >= best]
        lower[some] = swapped(gains, edges, members[:, some], _STARTS if at == 0 else _FEW_STARTS)[
            0
        ]
        at, best = at + len(some), max(best, int(lower.max()))
    work = _Work()
    _settle(gains, edges, k, lower, upper, work)
    value = int(lower.max())
    return Best((least * len(edges) + value * unit) / _STEPS, lower == value, work.complete)


def _embedded(fine: BoolArray, edges: Edges, k: int, work: _Work, *, one: bool) -> BoolArray:
    """(C(n, k),) sets onto which the graph can be laid with these links alone.

    ``one``: stop as soon as there is one.
    """
    members = members_of_size(fine.shape[0], k)
    linked = fine[members.T[:, :, None], members.T[:, None, :]].sum(axis=2)
    wanted = np.sort(_degrees(edges, k))
    possible = np.flatnonzero((np.sort(linked, axis=1) >= wanted).all(axis=1))
    lower = np.full(members.shape[1], -1, dtype=np.int64)
    upper = lower.copy()
    upper[possible] = 0
    step = len(possible) if not one else _FIRST
    for start in range(0, len(possible), max(1, step)):
        some = possible[start : start + step]
        held = swapped(fine.astype(np.int64), edges, members[:, some], _FEW_STARTS)[0]
        lower[some[held == len(edges)]] = 0
        if one and (lower == 0).any():
            return np.asarray(lower == 0)
    gains = np.where(fine, 0, FORBIDDEN)
    _settle(gains, edges, k, lower, upper, work)
    return np.asarray(lower == 0)


def best_by_bottleneck(weights: FloatArray, edges: Edges, k: int) -> Best:
    """Sets with the largest bottleneck over all mappings; parameters as :func:`best_by_sum`."""
    n = weights.shape[0]
    values = np.unique(weights[np.triu_indices(n, 1)])
    off = ~np.eye(n, dtype=bool)
    sets = np.ones(masks_of_size(n, k).size, dtype=np.bool_)
    work, low, high = _Work(), 0, len(values)  # values[low] can be had, values[high] cannot
    while high - low > 1:
        middle = (low + high) // 2
        fine = (weights >= values[middle]) & off
        found = _embedded(fine, edges, k, work, one=True)
        if found.any():
            low, sets = middle, found
        else:
            high = middle
    if low:  # what is known already stays, should the search end at its limit
        sets = sets | _embedded((weights >= values[low]) & off, edges, k, work, one=False)
    return Best(float(values[low]), sets, work.complete)


def best_layout(weights: FloatArray, edges: Edges, most_gbps: float | None = None) -> Layout:
    """Mapping onto all ``n`` GPUs with the largest sum.

    ``weights`` as in :func:`best_by_sum`, or ``-inf``: such links are used only where no mapping
    without them is found. ``most_gbps``: the largest sum with all links, if known: then a mapping
    is only to be found, not to be proven the best; if it is not, no long search is made.
    """
    n = weights.shape[0]
    gains, least, unit = _whole(weights)
    dear = -int(gains.max(initial=0)) * len(edges) - 1
    own = np.arange(n)[:, None]
    avoiding = np.where(gains == FORBIDDEN, dear, gains)
    reach = int(_upper(gains.clip(0), edges, n)[0])
    sure = most_gbps is not None and not (gains == FORBIDDEN).any()
    if most_gbps is not None and sure:
        reach = round((most_gbps * _STEPS - least * len(edges)) / unit)
    known, order, work = -1, tuple(range(n)), _Work()
    for seed, (most, starts, shakes) in enumerate(_ROUNDS, start=1):
        value, mapping = swapped(avoiding, edges, own, starts, shakes, seed)
        if seed == 1 or value[0] > known:
            known, order = max(int(value[0]), -1), tuple(int(gpu) for gpu in mapping[0])
        if known >= reach:
            return Layout(order, complete=True)
        if work.left <= 0 or (most_gbps is None and seed == len(_ROUNDS)):
            break
        found = work.search(gains, edges, n, np.array([reach - 1 if sure else known]), most)
        if found is not None:
            if found.value[0] >= 0:
                order = found.mapping((1 << n) - 1)
            return Layout(order, complete=bool(found.value[0] >= 0 or known >= 0))
    return Layout(order, complete=False)
