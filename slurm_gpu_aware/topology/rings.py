"""Best rings over every set of GPUs: dynamic programming over subsets.

A ring is a Hamiltonian cycle. Held and Karp (1962): the best path that starts at the lowest GPU
of a set, visits the set and ends at GPU v is the best such path of the set without v, extended
by one link. The fixed start removes rotations: (k-1)(k-2) extensions per set replace (k-1)!/2
rings. A few NumPy expressions process all sets of a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.topology.subsets import (
    Rows,
    exact_type,
    extended,
    members_of_size,
    rank_of_mask,
    slots_of,
    without_each,
)

Kinds = npt.NDArray[np.int8]
Reach = npt.NDArray[np.uint32]


@lru_cache(maxsize=256)
def _closing(n: int, size: int) -> IntArray:
    """(size-1, M) flat index ``v * n + u`` of the link from each end v back to the start u."""
    members = members_of_size(n, size)
    closing: IntArray = members[1:] * n + members[0]
    closing.setflags(write=False)
    return closing


class Rings:
    """The best paths, and so the best rings, over all sets of up to ``k >= 2`` GPUs. Exact.

    ``weights``: (n, n) GB/s, symmetric. ``ways``: how links combine, ``np.add`` (AggBW) or
    ``np.minimum`` (bottleneck). O(2^n n^2) operations for k near n.
    """

    def __init__(self, weights: FloatArray, k: int, *ways: np.ufunc) -> None:
        self.weights, self.k, self.ways = weights, k, ways
        n = weights.shape[0]
        # Single precision, if exact, halves the memory.
        gbps: Rows = np.ascontiguousarray(weights, dtype=exact_type(weights, k))
        best: Rows = np.stack([gbps.ravel().take(_closing(n, 2))] * len(ways))
        self._layers = [best]
        """(ways, size-1, M) best paths for sizes 2..k, by set and by position of the end."""
        for size in range(3, k + 1):
            # Every path is extended to all GPUs; then the ends inside each larger set are selected.
            longer = extended(gbps, members_of_size(n, size - 1)[1:], best, ways)
            best = longer.reshape(len(ways), -1).take(without_each(n, size)[1:], axis=1)
            self._layers.append(best)

    def values(self) -> tuple[FloatArray, ...]:
        """(C(n, k),) the largest value of a ring by each way, in tie order.

        A ring of two GPUs uses its link twice. The maxima can belong to different rings.
        """
        back = self.weights.ravel().take(_closing(self.weights.shape[0], self.k))
        pairs = zip(self.ways, self._layers[-1], strict=True)
        return tuple(way(paths, back).max(axis=0) for way, paths in pairs)

    def best(self, mask: int) -> tuple[int, ...]:
        """Order of the ring with the largest sum over the GPUs of a mask, from the lowest GPU on.

        The first of the ways is ``np.add``. Links of weight ``-inf`` are used only if every ring
        has one. Of equal rings the one with the lowest last GPU wins, then the one before it, and
        so on; then the order is turned so that its second GPU is below the last one.
        """
        n, weights, start = self.weights.shape[0], self.weights, slots_of(mask)[0]
        rank = rank_of_mask(n, self.k).item(mask)
        value = self._layers[-1][0][:, rank] + weights.ravel()[_closing(n, self.k)[:, rank]]
        position = int(value.argmax())
        order: list[int] = []
        for size in range(self.k, 1, -1):
            rank = rank_of_mask(n, size).item(mask)
            end = members_of_size(n, size).item(position + 1, rank)
            order.append(end)
            mask ^= 1 << end
            if size > 2:
                shorter = without_each(n, size).item(position + 1, rank) // n
                previous = members_of_size(n, size - 1)[1:, shorter]
                sums = self._layers[size - 3][0][:, shorter]
                position = int((sums + weights[previous, end]).argmax())
        return (start, *reversed(order)) if order[-1] < order[0] else (start, *order)


class RingCounts:
    """Possible numbers of double and single NVLinks of the rings over sets of ``k >= 2`` GPUs.

    Equation 2 of MAPA is not monotone in these numbers, so no single ring represents a set; the
    recursion stores all reachable pairs as bits: bit y of word x is set if some path or ring has x
    doubles and y singles. ``kinds``: (n, n) 2 = double NVLink, 1 = single NVLink, 0 = neither.
    """

    def __init__(self, kinds: Kinds, k: int) -> None:
        self.kinds, self.k = kinds, k
        n = kinds.shape[0]
        first = kinds.ravel()[_closing(n, 2)]
        start = np.zeros((k + 1, *first.shape), dtype=np.uint32)
        start[0] = 1
        self._layers = [_add_link(start, first)]
        for size in range(3, k + 1):
            paths, members = self._layers[-1], members_of_size(n, size)[1:]
            shorter = without_each(n, size)[1:] // n
            longer = np.zeros((k + 1, *members.shape), dtype=np.uint32)
            for place, end in enumerate(members_of_size(n, size - 1)[1:]):
                link = kinds[end.take(shorter), members]
                longer |= _add_link(paths[:, place].take(shorter, axis=1), link)
            self._layers.append(longer)

    def values(self) -> Reach:
        """(k+1, C(n, k)) words of the rings over every set, in tie order."""
        closing = _closing(self.kinds.shape[0], self.k)
        closed = _add_link(self._layers[-1], self.kinds.ravel()[closing])
        return np.asarray(np.bitwise_or.reduce(closed, axis=1))

    def best(self, value: Callable[[int, int], float]) -> tuple[int, ...]:
        """Ring over all ``n == k`` GPUs with the largest ``value(doubles, singles)``, from 0 on."""
        n = self.k
        x, y = max(pairs_in(self.values()[:, 0].tolist()), key=lambda pair: value(*pair))
        order: list[int] = []
        mask, following = (1 << n) - 1, 0
        for size in range(n, 1, -1):
            rank = rank_of_mask(n, size).item(mask)
            for position, end in enumerate(members_of_size(n, size)[1:, rank].tolist()):
                kind = self.kinds.item(end, following)
                left_x, left_y = x - (kind == 2), y - (kind == 1)
                if min(left_x, left_y) < 0:
                    continue
                if self._layers[size - 2].item(left_x, position, rank) >> left_y & 1:
                    x, y, following = left_x, left_y, end
                    order.append(end)
                    mask ^= 1 << end
                    break
        ring = (0, *reversed(order))
        return ring if ring[1] < ring[-1] else (0, *order)


def pairs_in(words: Iterable[int]) -> list[tuple[int, int]]:
    """The pairs (x, y) whose bit y of word x is set, ascending."""
    return [(x, y) for x, word in enumerate(words) for y in slots_of(word)]


def _add_link(reach: Reach, kind: Kinds) -> Reach:
    """Pairs reachable after one more link of the given kind per column."""
    more = np.where(kind == 1, reach << np.uint32(1), reach)
    double = kind == 2
    more[1:] = np.where(double, reach[:-1], more[1:])
    more[0] = np.where(double, np.uint32(0), more[0])
    return more
