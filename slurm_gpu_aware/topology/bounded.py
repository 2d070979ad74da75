"""Search for better mappings than those known, with bounds: a proof where it finds none.

Of the two graphs, the job's and the machine's, the vertices of one (the items) are laid one after
the other onto those of the other (the places). As in ``general``, partial placements that agree
in the places used and in the seats of the frontier are one state. Their number stays small
through a bound: an unplaced item v on a free place p is worth its links to the seats of its placed
neighbours, which are known, and at most half of what its other links give if those of p that are
free fit them in the best order (Gilmore and Lawler's bound of the quadratic assignment problem).
The most that every item can have, less what must be given up because no place is taken twice
(the least loss of every place), bounds what the rest adds. The same numbers bound each next
step, so most states are never made. A state that cannot beat what is known of any set of GPUs
that it can lead to is dropped.

Sparse job graphs are laid onto the machine; where the job's graph is dense and the machine has
few good links, the machine's graph is laid onto the job's, whose frontier is then the narrower.

References: P. C. Gilmore, J. SIAM 10 (1962) 305; E. L. Lawler, Management Science 9 (1963) 586.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.topology.patterns import Edges
from slurm_gpu_aware.topology.subsets import masks_of_size, rank_of_mask
from slurm_gpu_aware.topology.symmetry import first_of_orbit, lower_than

__all__ = ["FORBIDDEN", "NEVER", "WAYS", "Found", "Way", "improve"]

FORBIDDEN = -1
"""Gain of a link that must not be used."""
NEVER = np.iinfo(np.int64).max // 4
"""Floor of a set that is not asked about."""

_AT_ONCE = 1 << 12  # states that are bounded at once: what they need stays in the caches
_KEY_BITS = 62  # wider states are not merged

Small = npt.NDArray[np.signedinteger[Any]]
Seats = npt.NDArray[np.int8]
Way = Literal["narrow", "linked", "machine"]
WAYS: tuple[Way, ...] = ("narrow", "linked", "machine")
"""Job GPUs in the order of the narrowest frontier; of the most links to placed ones; GPUs first."""


@dataclass(frozen=True)
class _Step:
    """Placement of one item, and what is left after it."""

    item: int
    links: tuple[tuple[int, int], ...]
    """(column of the frontier, weight) of each link to a placed item."""
    above: tuple[int, ...]
    """Columns of the frontier whose place must be lower than the new one (symmetry)."""
    above_all: bool
    """The new place is not the lowest of all (symmetry)."""
    keep: tuple[int, ...]
    """Columns of (old frontier, new place) that form the next frontier."""
    rest: tuple[tuple[tuple[tuple[int, int], ...], tuple[int, ...]], ...]
    """Unplaced after it, the next one first: links to columns of the next frontier, and the
    weights of the links to unplaced ones, largest first."""


def _ordered(near: Sequence[dict[int, int]], way: Way) -> tuple[int, ...]:
    order: list[int] = []

    def narrow(v: int) -> tuple[float, float, int]:
        done = {*order, v}
        return sum(1 for u in done if near[u].keys() - done), -len(near[v].keys() & done), v

    def linked(v: int) -> tuple[float, float, int]:
        links = len(near[v].keys() & {*order})
        return len(near[v]) - 3 * links, -links, v

    key = linked if way == "linked" else narrow
    for _ in near:
        order.append(min((v for v in range(len(near)) if v not in order), key=key))
    return tuple(order)


def _planned(near: Sequence[dict[int, int]], way: Way, symmetric: Edges | None) -> list[_Step]:
    """Steps for items with these neighbours (and weights); symmetries of ``symmetric``."""
    order, count = _ordered(near, way), len(near)
    higher = [frozenset[int]()] * count
    if symmetric is not None:
        higher = list(lower_than(symmetric, count, order))
    frontier: list[int] = []
    steps = []
    for at, item in enumerate(order):
        columns, later = [*frontier, item], set(order[at + 1 :])
        following = [v for v in columns if near[v].keys() & later]
        rest = tuple(
            (
                tuple((i, near[v][u]) for i, u in enumerate(following) if u in near[v]),
                tuple(sorted((near[v][u] for u in near[v].keys() & later), reverse=True)),
            )
            for v in order[at + 1 :]
        )
        steps.append(
            _Step(
                item,
                tuple((i, near[item][v]) for i, v in enumerate(frontier) if v in near[item]),
                tuple(i for i, v in enumerate(frontier) if item in higher[v]),
                at > 0 and len(higher[order[0]]) == count - 1,
                tuple(columns.index(v) for v in following),
                rest,
            )
        )
        frontier = following
    return steps


@lru_cache(maxsize=256)
def _pattern_steps(edges: Edges, k: int, way: Way) -> tuple[_Step, ...]:
    near: list[dict[int, int]] = [{} for _ in range(k)]
    for a, b in edges:
        near[a][b] = near[b][a] = 1
    return tuple(_planned(near, way, edges))


@dataclass(frozen=True)
class _Layer:
    used: IntArray
    """Mask of the places taken."""
    seats: Seats
    """(width, S) places of the frontier."""
    value: IntArray
    parent: IntArray
    place: IntArray

    def of(self, rows: IntArray, value: IntArray) -> _Layer:
        return _Layer(
            self.used[rows], self.seats[:, rows], value, self.parent[rows], self.place[rows]
        )


@dataclass(frozen=True)
class Found:
    """Outcome of a search."""

    value: IntArray
    """(C(n, k),) gain of the best mapping onto each set if it beats the floor, else -1."""
    complete: bool
    """False: given up at the limit; better mappings may exist."""
    work: int
    """States that were made."""
    layers: tuple[_Layer, ...] = ()
    steps: tuple[_Step, ...] = ()
    machine_first: bool = False

    def mapping(self, mask: int) -> tuple[int, ...]:
        """GPU of each job GPU in the mapping found for a set whose value is not -1."""
        at = int(np.flatnonzero(self.layers[-1].used == mask)[0])
        pairs = []
        for layer, step in zip(reversed(self.layers), reversed(self.steps), strict=True):
            pairs.append((step.item, int(layer.place[at])))
            at = int(layer.parent[at])
        if self.machine_first:
            pairs = [(place, item) for item, place in pairs]
        return tuple(gpu for _, gpu in sorted(pairs))


class _Search:
    """One search: how items are laid onto places, and which states are worth while."""

    def __init__(
        self,
        steps: Sequence[_Step],
        gains: IntArray,
        limit: int,
        need: IntArray,
    ) -> None:
        self.steps = steps
        self.n = gains.shape[0]
        self.need = need
        """(2^n,) what a state with these places taken has to beat."""
        # Twice the gains, so that halves are whole; no layout gives more than the limit.
        self.never = -limit
        kinds = (np.int16, np.int32, np.int64)
        kind = next(t for t in kinds if t is np.int64 or 20 * limit < np.iinfo(t).max)
        self.raw = gains
        self.gains: Small = np.where(gains == FORBIDDEN, self.never, 2 * gains).astype(kind)

    def children(self, at: int, layer: _Layer, most: int) -> tuple[IntArray, ...] | None:
        """Rows, places and bounds (twice the gain) of the next placements that may help a set.

        None: more than ``most``.
        """
        step, following = self.steps[at - 1], self.steps[at]
        masks, of_row = np.unique(layer.used, return_inverse=True)
        profiles = {weights for _, weights in step.rest}
        halves = self._halves(masks, sorted(profiles))
        places = np.arange(self.n)[:, None]
        floor = 2 * self.need[layer.used]
        parts, made = [], 0
        for start in range(0, len(layer.used), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            used, seats = layer.used[part], layer.seats[:, part]
            bound = self._bound(used, seats, of_row[part], step, halves)
            bound += 2 * layer.value[part]
            allowed = bound > floor[part]
            allowed &= (used >> places & 1) == 0
            for column in following.above:
                allowed &= places > seats[column]
            if following.above_all:
                allowed &= (1 << places) > (used & -used)
            place, row = np.nonzero(allowed)
            made += len(row)
            if made > most:
                return None
            parts.append((row + start, place, bound[place, row]))
        rows, place, bound = (np.concatenate(column) for column in zip(*parts, strict=True))
        return rows, place, bound

    def _halves(
        self, masks: IntArray, profiles: Sequence[tuple[int, ...]]
    ) -> dict[tuple[int, ...], Small]:
        """Weights -> (n, M) half of the most that such links give from a free place."""
        places = np.arange(self.n)
        free = (masks[:, None] >> places & 1) == 0
        links = np.where(free[:, None, :], self.gains, self.never)
        links[:, places, places] = self.never
        links.sort(axis=2)
        found = {}
        for weights in profiles:
            best = np.zeros(links.shape[:2], dtype=np.int64)
            for rank, weight in enumerate(weights, start=1):
                best += weight * links[:, :, self.n - rank].astype(np.int64)
            best = np.where(free, np.maximum(best // 2, self.never), self.never)
            found[weights] = np.ascontiguousarray(best.T.astype(self.gains.dtype))
        return found

    def _bound(
        self,
        used: IntArray,
        seats: Seats,
        of_row: IntArray,
        step: _Step,
        halves: dict[tuple[int, ...], Small],
    ) -> IntArray:
        """(n, S) most that the rest adds if the next item takes each place."""
        half = {weights: table.take(of_row, axis=1) for weights, table in halves.items()}
        scaled: dict[tuple[int, int], Small] = {}
        total = np.zeros(len(used), dtype=np.int64)
        least = first = None
        for links, weights in step.rest:
            worth = half[weights].copy()
            for link in links:
                if link not in scaled:
                    column, weight = link
                    scaled[link] = (self.gains * self.gains.dtype.type(weight)).take(
                        seats[column], axis=1
                    )
                worth += scaled[link]
            np.maximum(worth, self.never, out=worth)
            best = worth.max(axis=0)
            total += best
            np.subtract(best, worth, out=worth)  # what is given up
            if least is None:
                least, first = worth.copy(), worth
            else:
                np.minimum(least, worth, out=least)
        assert least is not None  # noqa: S101  (children are asked for while items are left)
        assert first is not None  # noqa: S101
        given = total - first
        others = len(step.rest) - 1
        taken = (used >> np.arange(self.n)[:, None] & 1) == 1
        if self.n - int(used[0]).bit_count() == others + 1:
            least[taken] = 0
            return np.asarray(given - (least.sum(axis=0, dtype=np.int64) - least))
        if others:
            least[taken] = np.iinfo(least.dtype).max
            least.sort(axis=0)
            given -= least[:others].sum(axis=0, dtype=np.int64)
        return given

    def next_layer(
        self, at: int, layer: _Layer, parent: IntArray, place: IntArray, bound: IntArray
    ) -> _Layer:
        step = self.steps[at]
        used = layer.used[parent] | (1 << place)
        alive = bound > np.minimum(2 * self.need[used], NEVER - 1)
        # The bound may make up for a forbidden link by links that several items count on.
        for column, _ in step.links:
            alive &= self.raw[layer.seats[column, parent], place] != FORBIDDEN
        parent, place, used = parent[alive], place[alive], used[alive]
        value = layer.value[parent]
        for column, weight in step.links:
            value = value + weight * self.raw[layer.seats[column, parent], place]
        seats = np.concatenate([layer.seats[:, parent], place[None].astype(np.int8)])
        return self._merged(_Layer(used, seats[list(step.keep)], value, parent, place))

    @staticmethod
    def _merged(layer: _Layer) -> _Layer:
        """The best of the states that agree in all that matters (the first of equal ones)."""
        if not len(layer.used) or 16 + 4 * len(layer.seats) > _KEY_BITS:
            return layer
        key = layer.used
        for column in layer.seats:
            key = key << 4 | column
        order = np.argsort(key)
        key = key[order]
        starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        value = layer.value[order]
        best = np.maximum.reduceat(value, starts)
        size = np.diff(np.append(starts, len(key)))
        rows = np.where(value == np.repeat(best, size), order, len(key))
        return layer.of(np.minimum.reduceat(rows, starts), best)

    def run(self, starts: IntArray, most: int) -> tuple[tuple[_Layer, ...] | None, int]:
        """All layers (none if nothing is worth while), or None at the limit; and the work."""
        zero = np.zeros(1, dtype=np.int64)
        layer = _Layer(zero, np.zeros((0, 1), dtype=np.int8), zero, zero, zero)
        layers, work = [], 0
        for at in range(len(self.steps)):
            made: tuple[IntArray, ...] | None = (
                np.zeros(len(starts), dtype=np.int64),
                starts,
                np.full(len(starts), NEVER, dtype=np.int64),
            )
            if at:
                made = self.children(at, layer, most - work)
            if made is None:
                return None, most
            work += len(made[0])
            layer = self.next_layer(at, layer, *made)
            layers.append(layer)
            if not len(layer.used):
                return (), work
        return tuple(layers), work


def _least_of_supersets(n: int, k: int, floor: IntArray) -> IntArray:
    """(2^n,) least floor of the sets that contain each mask; NEVER if none does."""
    least = np.full(1 << n, NEVER, dtype=np.int64)
    least[masks_of_size(n, k)] = floor
    for bit in range(n):
        pairs = least.reshape(-1, 2, 1 << bit)
        np.minimum(pairs[:, 0], pairs[:, 1], out=pairs[:, 0])
    return least


def improve(
    gains: IntArray, edges: Edges, k: int, floor: IntArray, most: int, way: Way = "narrow"
) -> Found:
    """Find the best mapping onto every ``k``-set that beats what is known of the set.

    Parameters
    ----------
    gains : (n, n) whole numbers >= 0 or ``FORBIDDEN``, symmetric; n <= 16. Diagonal ignored.
    edges : pairs of job GPUs 0..k-1, each once, at least one.
    floor : (C(n, k),) what is known, in tie order: only larger sums are of interest. ``NEVER``
        for sets that are not asked about.
    most : states to make before giving up.
    way : order of placement; ``machine`` needs k = n and no forbidden links.

    Raises
    ------
    ValueError
        ``machine`` where it cannot be used.

    Notes
    -----
    Exact if complete, for each set by itself; the work is the same on every computer.
    """
    n = gains.shape[0]
    inside = np.sort(gains[np.triu_indices(n, 1)])
    limit = 2 * int(inside[::-1][: len(edges)].clip(0).sum()) + 1
    need = _least_of_supersets(n, k, floor)
    starts = np.arange(n, dtype=np.int64)
    if way == "machine":
        if k != n or (inside < 0).any():
            raise ValueError("a machine is laid onto a job of its size, by any of its links")
        search = _Search(_machine_steps(gains), _talks(edges, n), limit, need)
        starts = np.array(first_of_orbit(edges, k), dtype=np.int64)
    else:
        search = _Search(_pattern_steps(edges, k, way), gains, limit, need)
    layers, work = search.run(starts, most)
    best = np.full(floor.size, -1, dtype=np.int64)
    if not layers:
        return Found(best, layers is not None, work)
    best[rank_of_mask(n)[layers[-1].used]] = layers[-1].value
    best[best <= floor] = -1
    return Found(best, True, work, layers, tuple(search.steps), way == "machine")


def _machine_steps(gains: IntArray) -> list[_Step]:
    """GPUs as items, joined where a link gains something."""
    n = gains.shape[0]
    near = [{h: int(gains[g, h]) for h in range(n) if h != g and gains[g, h]} for g in range(n)]
    return _planned(near, "narrow", None)


def _talks(edges: Edges, k: int) -> IntArray:
    talks = np.zeros((k, k), dtype=np.int64)
    for a, b in edges:
        talks[a, b] = talks[b, a] = 1
    return talks
