"""Best rings over every set of GPUs: dynamic programming over subsets.

A ring is a Hamiltonian cycle. Held and Karp (1962): the best path that starts at the lowest GPU
of a set, visits the set and ends at GPU v is the best such path of the set without v, extended
by one link. The fixed start removes rotations: (k-1)(k-2) extensions per set replace (k-1)!/2
rings. A few NumPy expressions process all sets of a size.

The recursion computes both the sum of the links (AggBW) and their minimum (bottleneck).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.topology.extend import Rows, exact_type, extended
from slurm_gpu_aware.topology.subsets import members_of_size, rank_of_mask, slots_of, without_each

__all__ = ["Rings", "best_ring", "ring_counts", "ring_values", "ring_with_counts"]

Kinds = npt.NDArray[np.int8]
Reach = npt.NDArray[np.uint32]


@lru_cache(maxsize=256)
def _shorter(n: int, size: int) -> IntArray:
    """(size-1, M) column of each set without each of its members except the start.

    A path over the set in column r of ``members_of_size`` that ends at its p-th member is state
    (p - 1, r); member 0 is the start.
    """
    columns: IntArray = without_each(n, size)[1:] // n
    columns.setflags(write=False)
    return columns


@lru_cache(maxsize=256)
def _closing(n: int, size: int) -> IntArray:
    """(size-1, M) flat index ``v * n + u`` of the link from each end v back to the start u."""
    members = members_of_size(n, size)
    closing: IntArray = members[1:] * n + members[0]
    closing.setflags(write=False)
    return closing


def _path_layers(weights: FloatArray, k: int, *ways: np.ufunc) -> Iterator[Rows]:
    """Best paths by each way to combine links for sizes 2..k, each (ways, size-1, M).

    Every path is first extended to all GPUs, one row per set; then the ends inside each larger set
    are selected. Single precision, if exact, halves the memory.
    """
    n = weights.shape[0]
    gbps: Rows = np.ascontiguousarray(weights, dtype=exact_type(weights, k))
    links = gbps.ravel().take(_closing(n, 2))
    best: Rows = np.empty((len(ways), *links.shape), links.dtype)
    best[:] = links
    yield best
    for size in range(3, k + 1):
        longer = extended(gbps, members_of_size(n, size - 1)[1:], best, ways)
        best = longer.reshape(len(ways), -1).take(without_each(n, size)[1:], axis=1)
        yield best


def ring_values(weights: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    """Largest sum and largest bottleneck of a ring over every set of ``k >= 2`` GPUs.

    Parameters
    ----------
    weights : (n, n) GB/s, symmetric.

    Returns
    -------
    (C(n, k),) sums and (C(n, k),) bottlenecks in tie order. A ring of two GPUs uses its link
    twice. The two maxima can belong to different rings.

    Notes
    -----
    Exact. O(2^n n^2) additions for k near n; C(n, k) sets times n k at the last size.
    """
    *_, last = _path_layers(weights, k, np.add, np.minimum)
    return _closed(weights, k, last)


def _closed(weights: FloatArray, k: int, last: Rows) -> tuple[FloatArray, FloatArray]:
    best_sum, best_min = last
    back = weights.ravel().take(_closing(weights.shape[0], k))
    return (best_sum + back).max(axis=0), np.minimum(best_min, back).max(axis=0)


class Rings:
    """The best paths, and so the best rings, over all sets of up to ``k >= 2`` GPUs."""

    def __init__(self, weights: FloatArray, k: int, *ways: np.ufunc) -> None:
        self.weights, self.k = weights, k
        self._layers = list(_path_layers(weights, k, *ways))

    def values(self) -> tuple[FloatArray, FloatArray]:
        """As :func:`ring_values`; the ways are ``np.add`` and ``np.minimum``."""
        return _closed(self.weights, self.k, self._layers[-1])

    def best(self, mask: int) -> tuple[int, ...]:
        """Order of the ring with the largest sum over the GPUs of a mask, from the lowest GPU on.

        The first of the ways is ``np.add``. Links of weight ``-inf`` are used only if every ring
        has one. The second GPU has a lower index than the last one.

        Deterministic: of equal rings the one with the lowest last GPU wins, then the one before it,
        and so on. If this ring also meets a condition, it wins among the rings that do.
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


def best_ring(weights: FloatArray) -> tuple[int, ...]:
    """Order of the ring with the largest sum over all ``n >= 1`` GPUs; see :meth:`Rings.best`."""
    n = weights.shape[0]
    return tuple(range(n)) if n <= 2 else Rings(weights, n, np.add).best((1 << n) - 1)


def _reach_layers(kinds: Kinds, k: int) -> Iterator[Reach]:
    """Reachable (x, y) pairs of paths for sizes 2..k, each (k+1, size-1, M)."""
    n = kinds.shape[0]
    flat = np.ascontiguousarray(kinds).ravel()
    closing = _closing(n, 2)
    start = np.zeros((k + 1, *closing.shape), dtype=np.uint32)
    start[0] = 1
    reach = _add_link(start, flat[closing])
    yield reach
    for size in range(3, k + 1):
        shorter, members = _shorter(n, size), members_of_size(n, size)
        longer = np.zeros((k + 1, *shorter.shape), dtype=np.uint32)
        before = members_of_size(n, size - 1)[1:] * n
        for previous in range(size - 2):
            link = flat.take(before[previous].take(shorter) + members[1:])
            longer |= _add_link(reach[:, previous].take(shorter, axis=1), link)
        reach = longer
        yield reach


def ring_counts(kinds: Kinds, k: int) -> Reach:
    """Possible numbers of double and single NVLinks of the rings over every ``k``-set.

    Equation 2 of MAPA is not monotone in these numbers, so no single ring represents a set; the
    recursion stores all reachable pairs as bits.

    Parameters
    ----------
    kinds : (n, n) 2 = double NVLink, 1 = single NVLink, 0 = neither.

    Returns
    -------
    (k+1, C(n, k)) words in tie order; bit y of word x is set if some ring has x doubles, y singles
    and k - x - y other links. ``k >= 2``.
    """
    *_, reach = _reach_layers(kinds, k)
    closed = _add_link(reach, kinds.ravel()[_closing(kinds.shape[0], k)])
    return np.asarray(np.bitwise_or.reduce(closed, axis=1))


def ring_with_counts(kinds: Kinds, value: Callable[[int, int], float]) -> tuple[int, ...]:
    """A ring over all ``n`` GPUs with the largest ``value(doubles, singles)``.

    The order starts at GPU 0. Deterministic.
    """
    n = kinds.shape[0]
    if n <= 2:
        return tuple(range(n))
    layers = list(_reach_layers(kinds, n))
    last = _add_link(layers[-1][:, :, 0], kinds[1:, 0])
    pairs = [
        (x, y)
        for x in range(n + 1)
        for y in range(n + 1 - x)
        if (last[x] >> np.uint32(y) & np.uint32(1)).any()
    ]
    x, y = max(pairs, key=lambda pair: value(*pair))
    order: list[int] = []
    mask, following = (1 << n) - 1, 0
    for size in range(n, 1, -1):
        rank = rank_of_mask(n, size).item(mask)
        for position in range(size - 1):
            end = int(members_of_size(n, size)[position + 1, rank])
            kind = int(kinds[end, following])
            left_x, left_y = x - (kind == 2), y - (kind == 1)
            if min(left_x, left_y) < 0:
                continue
            if int(layers[size - 2][left_x, position, rank]) >> left_y & 1:
                x, y, following = left_x, left_y, end
                order.append(end)
                mask ^= 1 << end
                break
    ring = (0, *reversed(order))
    return ring if ring[1] < ring[-1] else (0, *order)


def _add_link(reach: Reach, kind: Kinds) -> Reach:
    """Pairs reachable after one more link of the given kind per column."""
    more = np.where(kind == 1, reach << np.uint32(1), reach)
    double = kind == 2
    more[1:] = np.where(double, reach[:-1], more[1:])
    more[0] = np.where(double, np.uint32(0), more[0])
    return more
