"""Communication patterns: the pairs of a job's GPUs that communicate (MAPA, section 3.1).

=========== ==========================================================================
ring        0-1-...-(k-1)-0; two GPUs use their link twice
tree        balanced binary tree: GPU i communicates with GPU (i-1)//2
ring+tree   both, embedded separately as in NCCL; a link that both use counts twice
all-to-all  every pair once
none        no links
edge list   ``0-1,1-2,1-3``: the job's GPUs are numbered 0..k-1
=========== ==========================================================================

Best rings over every set of GPUs: dynamic programming over subsets.

A ring is a Hamiltonian cycle. Held and Karp (1962): the best path that starts at the lowest GPU
of a set, visits the set and ends at GPU v is the best such path of the set without v, extended
by one link. The fixed start removes rotations: (k-1)(k-2) extensions per set replace (k-1)!/2
rings. A few NumPy expressions process all sets of a size.

Best balanced binary trees over every set of GPUs: dynamic programming over subsets.

The pattern is the heap-ordered tree: GPU i communicates with GPU (i-1)//2. Its subtrees are
heap-ordered trees of few different sizes, with one table per size. The best tree over a set rooted
at v is the best split of the rest of the set into two child subtrees, each joined to v by one link.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.job_hints import PATTERN
from slurm_gpu_aware.topology.subsets import (
    Rows,
    exact_type,
    extended,
    masks_of_size,
    members_of_size,
    rank_of_mask,
    slots_of,
    without_each,
)

Edges = tuple[tuple[int, int], ...]

_EDGE_LIST = re.compile(r"[0-9]{1,2}-[0-9]{1,2}(,[0-9]{1,2}-[0-9]{1,2})*\Z")
_MAX_TEXT = 32_768  # characters of an edge list; all pairs of 100 GPUs fit
Kinds = npt.NDArray[np.int8]
Reach = npt.NDArray[np.uint32]
_MOST_AT_ONCE = 1 << 14  # splits in one expression, to stay in the caches


@dataclass(frozen=True)
class Pattern:
    """A named pattern, or an edge list."""

    name: str  # One of the words of `PATTERN`, or ``edges``.
    edges: Edges = ()  # Only for ``edges``: pairs (a < b), sorted, each once.

    def edges_for(self, k: int) -> Edges:
        """Edges between positions 0..k-1, each as often as it counts.

        ``ring+tree`` gives the ring, then the tree on the same positions; the matcher embeds them
        separately. An edge list is cut to the job's positions.
        """
        if self.name == "edges":
            return tuple((a, b) for a, b in self.edges if b < k)
        if self.name == "all-to-all":
            return tuple(combinations(range(k), 2))
        parts = self.name.split("+") if k > 1 else ()
        ring = ((i, (i + 1) % k) for i in range(k) if "ring" in parts)
        tree = (((i - 1) // 2, i) for i in range(1, k) if "tree" in parts)
        return (*ring, *tree)

    def has_edges(self, k: int) -> bool:
        """Say whether any of ``k`` GPUs communicate. Builds no edges."""
        if self.name == "edges":
            return any(b < k for _, b in self.edges)
        return k > 1 and self.name != "none"


@cache
def heap_children(k: int) -> tuple[int, int]:
    """Sizes of the two subtrees below the root of the balanced binary tree on ``k`` nodes."""
    # Counted from 1, node m lies below node 2 or 3: its two leading bits.
    left = sum(m >> (m.bit_length() - 2) == 2 for m in range(2, k + 1))
    return left, max(0, k - 1 - left)


def parse_pattern(text: str) -> Pattern:
    """Parse a pattern's name or an edge list such as ``0-1,1-2``.

    Raises RequestError if the text is neither; the message lists the valid values.
    """
    if text in PATTERN.words:
        return Pattern(text)
    if len(text) <= _MAX_TEXT and _EDGE_LIST.match(text):
        pairs = [tuple(int(v) for v in edge.split("-")) for edge in text.split(",")]
        if all(a != b for a, b in pairs):
            return Pattern("edges", tuple(sorted({(min(p), max(p)) for p in pairs})))
    valid = f"{', '.join(PATTERN.words)}, or edges such as 0-1,1-2"
    raise RequestError(f"pattern {quoted(text)} is unknown; valid: {valid}")


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


@lru_cache(maxsize=64)
def _splits(n: int, left: int, right: int) -> tuple[IntArray, IntArray]:
    """(S, M) ranks of both parts for the S ways to split each of M sets into these sizes.

    The sets are those of ``left + right`` GPUs in tie order. Parts of equal size are
    interchangeable: the lowest GPU is then on the left.
    """
    size = left + right
    chosen = [c for c in combinations(range(size), left) if left != right or 0 in c]
    pick = np.zeros((len(chosen), size))
    pick[np.arange(len(chosen))[:, None], chosen] = 1.0
    # Float products of powers of two below 2^16 are exact, and BLAS is fast.
    part = (pick @ (1 << members_of_size(n, size)).astype(np.float64)).astype(np.int64)
    other = masks_of_size(n, size) ^ part
    return rank_of_mask(n, left)[part], rank_of_mask(n, right)[other]


class Trees:
    """The best trees over all sets of ``k >= 1`` GPUs, with tables of their subtrees. Exact.

    ``weights``: (n, n) GB/s, symmetric. ``ways``: how links combine, ``np.add`` (AggBW) or
    ``np.minimum`` (bottleneck). A row of a table holds a value for each GPU that a tree can be
    joined to, so a split combines two rows for all roots at once: at most about 7 million splits
    on 16 GPUs (k = 12).
    """

    def __init__(self, weights: FloatArray, k: int, *ways: np.ufunc) -> None:
        # Single precision, if exact, halves the memory.
        self.weights = weights.astype(exact_type(weights, k))
        self.n, self.k, self.ways = weights.shape[0], k, ways
        self._joined: dict[int, Rows] = {}
        self._rooted: dict[int, Rows] = {}

    def values(self) -> tuple[FloatArray, ...]:
        """(C(n, k),) the largest value of a tree by each way, in tie order.

        One GPU has the sum 0 and the bottleneck inf. The maxima can belong to different trees.
        """
        return tuple(self._of_size(self.k).max(axis=1).astype(np.float64))

    def best(self, mask: int) -> tuple[int, ...]:
        """GPUs of a mask in heap order of their best tree by the first of the ways.

        Position i is the parent of 2i+1 and 2i+2. Links of weight ``-inf`` are used only if every
        tree has one. Deterministic: the first of the best at each step.
        """
        out = [0] * self.k
        rank = rank_of_mask(self.n, self.k).item(mask)
        root = int(self._of_size(self.k)[0][:, rank].argmax())
        self._layout(slots_of(mask)[root], mask, 0, out)
        return tuple(out)

    def _of_size(self, size: int) -> Rows:
        """(ways, size, M) best tree over each set rooted at each of its members."""
        if size not in self._rooted:
            left, right = heap_children(size)
            if left == 0:
                none = [0.0 if way is np.add else np.inf for way in self.ways]  # without links
                neutral = np.array(none, self.weights.dtype)
                rooted: Rows = np.broadcast_to(neutral[:, None, None], (len(neutral), 1, self.n))
            else:
                below = self._children(left, right).reshape(len(self.ways), -1)
                rooted = below.take(without_each(self.n, size), axis=1)
            self._rooted[size] = rooted
        return self._rooted[size]

    def _joined_to(self, size: int) -> Rows:
        """(ways, M, n) best tree over each set, joined by one link to each GPU outside it."""
        if size not in self._joined:
            ends = members_of_size(self.n, size)  # each possible root
            self._joined[size] = extended(self.weights, ends, self._of_size(size), self.ways)
        return self._joined[size]

    def _children(self, left: int, right: int) -> Rows:
        """(ways, M, n) best pair of trees over each set of ``left + right``, below each root."""
        one = self._joined_to(left)
        if right == 0:
            return one
        other = self._joined_to(right)
        a, b = _splits(self.n, left, right)
        splits, sets = a.shape
        best = np.empty((len(self.ways), sets, self.n), one.dtype)
        step = max(1, _MOST_AT_ONCE // splits)
        for start in range(0, sets, step):
            lefts, rights = a[:, start : start + step], b[:, start : start + step]
            for at, way in enumerate(self.ways):
                pairs = way(one[at].take(lefts, axis=0), other[at].take(rights, axis=0))
                pairs.max(axis=0, out=best[at, start : start + step])
        return best

    def _layout(self, root: int, mask: int, at: int, out: list[int]) -> None:
        """Write the best tree over ``mask`` with this root, by the first of the ways."""
        out[at] = root
        rest, way = mask ^ (1 << root), self.ways[0]
        left, right = heap_children(mask.bit_count())
        part = rest
        if right:
            rank = rank_of_mask(self.n, left + right).item(rest)
            a, b = (ranks[:, rank] for ranks in _splits(self.n, left, right))
            lefts, rights = self._joined_to(left)[0, a, root], self._joined_to(right)[0, b, root]
            part = masks_of_size(self.n, left).item(a[way(lefts, rights).argmax()])
        for child, place in ((part, 2 * at + 1), (rest ^ part, 2 * at + 2)):
            size = child.bit_count()
            if size == 1:
                out[place] = child.bit_length() - 1
            elif size:
                gpus = slots_of(child)
                below = self._of_size(size)[0][:, rank_of_mask(self.n, size).item(child)]
                best = int(way(self.weights[root, list(gpus)], below).argmax())
                self._layout(gpus[best], child, place, out)
