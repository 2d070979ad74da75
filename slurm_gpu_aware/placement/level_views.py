"""Locality levels for the search, with dense group numbers and masks of domains.

Scores of one class for policies: distinct values, masks, integers.

Bit masks over slots: the (N, W) arrays of a cluster as one integer per node.

Bit ``s`` of a node's integer stands for slot ``s``. Questions such as "which free GPUs have at most
this score" are then one vector operation over N integers.

Cache of results by the identity of the objects that they were computed from.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, wraps
from itertools import combinations
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE
from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel

_NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"

MaskArray = npt.NDArray[Any]  # Unsigned integers; bit s stands for slot s.
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_SIZE = 24  # results of each function
_BY_VALUE = frozenset({str, int})
_FIXED_POINT = 1e5  # sums of scores are integers of five decimals, so equal sums compare equal
_LARGEST_SCORE = 100.0  # limit of a score in sums (not in the worst score)
_MOST_MASKS = 64
_TOGETHER, _LAST_BYTE = np.uint32(1 << 24 | 1 << 17 | 1 << 10 | 1 << 3), np.uint32(24)


def every(bits: BoolArray) -> bool:
    """Like ``bits.all()``, but three times as fast for few nodes."""
    return int(np.count_nonzero(bits)) == bits.size


def some(bits: BoolArray) -> bool:
    """Like ``bits.any()``, but faster for few nodes."""
    return int(np.count_nonzero(bits)) > 0


@cache
def mask_type(width: int) -> np.dtype[Any]:
    """The smallest unsigned type with a bit for each slot."""
    for size in (8, 16, 32, 64):
        if width <= size:
            return np.dtype(f"u{size // 8}")
    raise ValueError(f"a node has at most {MAX_GPUS_PER_NODE} GPUs, not {width}")


def pack(bits: BoolArray) -> MaskArray:
    """(N, W) truth values to (N,) masks; W <= 64."""
    n, width = bits.shape
    if width == 4:  # a row is one number of four bytes; a product moves their lowest bits together
        rows = np.ascontiguousarray(bits).view("<u4").reshape(-1)
        return np.asarray((rows * _TOGETHER >> _LAST_BYTE).astype(np.uint8))
    kind = mask_type(width)
    size = kind.itemsize * 8
    if width != size:
        padded = np.zeros((n, size), dtype=np.bool_)
        padded[:, :width] = bits
        bits = padded
    raw = np.packbits(bits.reshape(-1), bitorder="little")
    return raw if size == 8 else raw.view(kind.newbyteorder("<")).astype(kind, copy=False)


def unpack(masks: MaskArray, width: int) -> BoolArray:
    """(M,) masks to (M, W) truth values."""
    shifts = np.arange(width, dtype=masks.dtype)
    return np.asarray((masks[:, None] >> shifts) & masks.dtype.type(1), dtype=np.bool_)


def popcount(masks: MaskArray) -> MaskArray:
    """Number of set bits of each mask."""
    if _NUMPY_2:
        counts: MaskArray = np.bitwise_count(masks)
        return counts
    raw = np.ascontiguousarray(masks)[..., None].view(np.uint8)
    return np.asarray(np.unpackbits(raw, axis=-1).sum(axis=-1, dtype=np.uint8))


@cache
def sets_of(width: int, size: int) -> IntArray:
    """All sets of ``size`` of ``width`` slots as masks, in tie order (0,1 0,2 .. 1,2)."""
    chosen = combinations(range(width), size)
    return np.array([sum(1 << s for s in c) for c in chosen], dtype=np.int64)


def superset_counts(place: IntArray | int, masks: MaskArray, groups: int, width: int) -> IntArray:
    """(groups, 2^width): number of masks of the group that contain each set.

    The superset sum of the histogram of masks: W vector additions over 2^W entries.
    """
    flat = (place << width) | masks.astype(np.int64)
    table: IntArray = np.bincount(flat, minlength=groups << width)
    for slot in range(width):
        halves = table.reshape(-1, 2, 1 << slot)
        halves[:, 0] += halves[:, 1]
    return table.reshape(groups, -1)


def by_identity(build: Callable[[*_Ts], _T]) -> Callable[[*_Ts], _T]:
    """Cache the last results of a function of arrays or of tuples of large objects.

    Strings and integers are compared by value, other arguments by identity. The cache keeps the
    arguments alive, so that no other object gets the identity of a cached one.
    """
    entries: OrderedDict[tuple[object, ...], tuple[tuple[object, ...], _T]] = OrderedDict()

    @wraps(build)
    def cached(*args: *_Ts) -> _T:
        key = tuple([arg if arg.__class__ in _BY_VALUE else id(arg) for arg in args])
        entry = entries.get(key)
        if entry is not None:
            entries.move_to_end(key)
            return entry[1]
        result = build(*args)
        entries[key] = (args, result)
        if len(entries) > _SIZE:
            entries.popitem(last=False)
        return result

    return cached


@dataclass(frozen=True, eq=False)
class LevelView:
    """A locality level for the search."""

    name: str
    penalty: float
    group: IntArray
    """(N,) group number of each node, 0..groups-1; -1: in no group. Not used by one-node sets."""
    groups: int
    domains: MaskArray | None
    """(N, J) masks of the GPUs of each domain within a node; None: the whole node."""
    one_node: bool  # The sets of this level lie on one node.
    any_span: bool = False  # Sets on one or several nodes belong to this level (PM-First).

    @cached_property
    def known(self) -> BoolArray | None:
        """(N,) nodes in a group; None: all."""
        inside = self.group >= 0
        return None if every(inside) else inside


def level_views(cluster: Cluster, app_class: str = "") -> tuple[LevelView, ...]:
    """Return the cluster's levels with L for a class, tightest first. Cached by identity."""
    own = any(app_class in level.by_class for level in cluster.levels)
    return _views(cluster.levels, app_class if own else "")


@by_identity
def _views(levels: tuple[LocalityLevel, ...], app_class: str) -> tuple[LevelView, ...]:
    return tuple(_view(level, level.of(app_class).value) for level in levels)


def inside_groups(cluster: Cluster, of: IntArray) -> Cluster:
    """The cluster with levels inside the groups ``of`` nodes, (N,); -1: in no group."""
    return replace(cluster, levels=_inside_groups(cluster.levels, of))


@by_identity
def _inside_groups(levels: tuple[LocalityLevel, ...], of: IntArray) -> tuple[LocalityLevel, ...]:
    return tuple(
        level if level.group.ndim == 2 else replace(level, group=_both(level.group, of))
        for level in levels
    )


def _both(group: IntArray, of: IntArray) -> IntArray:
    """(N,) numbers of the pairs; -1 if either is -1."""
    inverse = np.unique(np.stack([group, of]), axis=1, return_inverse=True)[1].reshape(-1)
    return np.where((group >= 0) & (of >= 0), inverse, -1).astype(np.int64)


@by_identity
def anywhere(nodes: int) -> LevelView:
    """One level that holds every set, to ignore locality."""
    group = np.zeros(nodes, dtype=np.int64)
    return LevelView("anywhere", 1.0, group, 1, None, one_node=False, any_span=True)


def two_levels(cluster: Cluster) -> tuple[LevelView, LevelView]:
    """Two levels without penalties: one node, then several."""
    group = anywhere(cluster.shape[0]).group
    return (
        LevelView("node", 1.0, group, 1, None, one_node=True),
        LevelView("cluster", 1.0, group, 1, None, one_node=False),
    )


def _view(level: LocalityLevel, penalty: float) -> LevelView:
    group = np.asarray(level.group)
    if group.ndim == 2:
        nodes = np.zeros(group.shape[0], dtype=np.int64)
        return LevelView(level.name, penalty, nodes, 1, _domains(group), one_node=True)
    known = group >= 0
    numbers, inverse = np.unique(group[known], return_inverse=True)
    dense = np.full(group.shape, -1, dtype=np.int64)
    dense[known] = inverse.reshape(-1)
    alone = level.name == "node" or len(numbers) == len(group)
    return LevelView(level.name, penalty, dense, len(numbers), None, one_node=alone)


def _domains(group: IntArray) -> MaskArray:
    """(N, W) group numbers to (N, J) masks, J = most domains on one node."""
    n, width = group.shape
    masks = np.zeros((n, width), dtype=mask_type(width))
    for s in range(width):
        together = group == group[:, s : s + 1]
        members = pack(together)
        leader = (group[:, s] >= 0) & ~together[:, :s].any(axis=1)
        masks[:, s] = np.where(leader, members, 0)
    used = max(1, int((masks != 0).sum(axis=1).max(initial=1)))
    order = np.argsort(masks == 0, axis=1, kind="stable")  # existing domains first, in slot order
    return np.take_along_axis(masks, order, axis=1)[:, :used]


class ScoreTable:
    """The (N, W) scores of one class; 1.0 for values that are not finite.

    ``values``: (B,) ascending distinct scores of the GPUs that exist: PAL's bins. ``scores``,
    ``fixed``: (N, W) scores, and as integers of 1e-5, for sums independent of their order.
    """

    def __init__(self, scores: FloatArray, exists: BoolArray) -> None:
        self.scores: FloatArray = np.where(np.isfinite(scores), scores, 1.0)
        present = self.scores[exists]
        self.values: FloatArray = np.unique(present) if present.size else np.ones(1)
        clipped = np.minimum(self.scores, _LARGEST_SCORE)
        self.fixed: IntArray = np.rint(clipped * _FIXED_POINT).astype(np.int64)
        self._masks: dict[int, MaskArray] = {}

    @property
    def least_fixed(self) -> int:
        """The least of ``values`` in the unit of ``fixed``."""
        return round(min(self.values.item(0), _LARGEST_SCORE) * _FIXED_POINT)

    def at_most(self, index: int) -> MaskArray:
        """(N,) masks of the GPUs with a score of at most ``values[index]``."""
        found = self._masks.get(index)
        if found is None:
            found = pack(self.scores <= self.values[index])
            if len(self._masks) < _MOST_MASKS:
                self._masks[index] = found
        return found


def score_table(cluster: Cluster, app_class: str) -> ScoreTable:
    """Return the table of a class, cached by the identity of its array, which becomes read-only."""
    return _table(cluster.scores.get(app_class), cluster.exists)


def flat_table(cluster: Cluster) -> ScoreTable:
    """Return a table with score 1.0 for all GPUs."""
    return _table(None, cluster.exists)


@by_identity
def _table(scores: FloatArray | None, exists: BoolArray) -> ScoreTable:
    if scores is None:
        return ScoreTable(np.ones(exists.shape), exists)
    scores.flags.writeable = False
    return ScoreTable(scores, exists)
