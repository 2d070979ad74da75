"""Bit masks over slots: the (N, W) rectangles of a cluster as one integer per node.

A policy asks the same questions of every node again and again: which free GPUs are at most this
slow, how many are there, do two nodes share two of them. With bit ``s`` of a node's integer for
slot ``s`` each question is one vector operation over N integers, at a million GPUs as at eight.

What depends only on scores or levels is computed once per array and remembered by identity
(:func:`score_table`, :func:`level_views`); what depends on who is free is computed per decision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE
from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel

__all__ = [
    "LevelView",
    "MaskArray",
    "ScoreTable",
    "anywhere",
    "every",
    "flat_table",
    "inside_groups",
    "level_views",
    "model_nodes",
    "pack",
    "popcount",
    "score_table",
    "sets_of",
    "some",
    "two_levels",
    "unpack",
]

MaskArray = npt.NDArray[Any]
"""Unsigned integers; bit s stands for slot s."""

_T = TypeVar("_T")
_FIXED_POINT = 1e5  # sums of scores are compared to five decimals, as integers: no rounding ties
_LARGEST_SCORE = 100.0  # larger ones count as this in sums (never in the worst score)


class _IdentityCache:
    """The last few results, keyed by the identity of what they were computed from.

    Holds the keys alive, so an id cannot be reused by another object while it is in here.
    """

    SIZE = 24

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[tuple[Any, ...], Any]] = OrderedDict()

    def get(self, what: str, objects: tuple[Any, ...], build: Callable[[], _T]) -> _T:
        key = (what, *map(id, objects))
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            result: _T = entry[1]
            return result
        result = build()
        self._entries[key] = (objects, result)
        if len(self._entries) > self.SIZE:
            self._entries.popitem(last=False)
        return result


_cache = _IdentityCache()


def every(bits: BoolArray) -> bool:
    """``bits.all()``, in a third of its time on few nodes: NumPy wraps that method in Python."""
    return int(np.count_nonzero(bits)) == bits.size


def some(bits: BoolArray) -> bool:
    """``bits.any()``, likewise."""
    return int(np.count_nonzero(bits)) > 0


@cache
def _mask_type(width: int) -> np.dtype[Any]:
    for size in (8, 16, 32, 64):
        if width <= size:
            return np.dtype(f"u{size // 8}")
    raise ValueError(f"a node has at most {MAX_GPUS_PER_NODE} GPUs, not {width}")


@cache
def _packed_type(width: int) -> np.dtype[Any]:
    return _mask_type(width).newbyteorder("<")


def pack(bits: BoolArray) -> MaskArray:
    """One integer per row: (N, W) truth values to (N,) masks. W <= 64."""
    n, width = bits.shape
    kind = _mask_type(width)
    size = kind.itemsize * 8
    if width != size:
        padded = np.zeros((n, size), dtype=np.bool_)
        padded[:, :width] = bits
        bits = padded
    raw = np.packbits(bits.reshape(-1), bitorder="little")
    return raw if size == 8 else raw.view(_packed_type(width)).astype(kind, copy=False)


def unpack(masks: MaskArray, width: int) -> BoolArray:
    """(M,) masks back to (M, W) truth values."""
    shifts = np.arange(width, dtype=masks.dtype)
    one = masks.dtype.type(1)
    bits: BoolArray = ((masks[:, None] >> shifts) & one).astype(np.bool_)
    return bits


if hasattr(np, "bitwise_count"):

    def popcount(masks: MaskArray) -> MaskArray:
        """Number of set bits of each mask."""
        counts: MaskArray = np.bitwise_count(masks)
        return counts

else:  # NumPy 1.26
    _TABLE = np.array([bin(i).count("1") for i in range(1 << 16)], dtype=np.uint8)

    def popcount(masks: MaskArray) -> MaskArray:
        """Number of set bits of each mask."""
        wide = masks.astype(np.uint64)
        low = np.uint64(0xFFFF)
        parts = [_TABLE[(wide >> np.uint64(shift)) & low] for shift in (0, 16, 32, 48)]
        total: MaskArray = parts[0] + parts[1] + parts[2] + parts[3]
        return total


@cache
def sets_of(width: int, size: int) -> IntArray:
    """All sets of ``size`` of ``width`` slots as masks, lowest indices first (0,1 0,2 .. 1,2)."""
    chosen = combinations(range(width), size)
    return np.array([sum(1 << s for s in c) for c in chosen], dtype=np.int64)


class ScoreTable:
    """The scores of one class, as a policy needs them.

    Attributes
    ----------
    values : (B,) ascending distinct scores of the GPUs that exist: PAL's bins.
    fixed : (N, W) scores as integers of 1e-5, for sums that do not depend on their order.
    """

    MOST_MASKS = 64

    def __init__(self, scores: FloatArray, exists: BoolArray) -> None:
        self._scores = np.where(np.isfinite(scores), scores, 1.0)
        present = self._scores[exists]
        self.values: FloatArray = np.unique(present) if present.size else np.ones(1)
        clipped = np.minimum(self._scores, _LARGEST_SCORE)
        self.fixed: IntArray = np.rint(clipped * _FIXED_POINT).astype(np.int64)
        self._masks: dict[int, MaskArray] = {}
        self._fixed_values: dict[int, int] = {}

    @property
    def scores(self) -> FloatArray:
        """(N, W) scores; 1.0 where the given one was no finite number."""
        return self._scores

    def fixed_value(self, index: int) -> int:
        """``values[index]`` in the unit of ``fixed``."""
        found = self._fixed_values.get(index)
        if found is None:
            found = round(min(float(self.values[index]), _LARGEST_SCORE) * _FIXED_POINT)
            self._fixed_values[index] = found
        return found

    def at_most(self, index: int) -> MaskArray:
        """(N,) masks of the GPUs whose score is at most ``values[index]``."""
        found = self._masks.get(index)
        if found is None:
            found = pack(self._scores <= self.values[index])
            if len(self._masks) < self.MOST_MASKS:
                self._masks[index] = found
        return found


def score_table(cluster: Cluster, app_class: str) -> ScoreTable:
    """Return the table of a class, remembered by the identity of its score array.

    The score array becomes read-only: a later write into it would silently be missed here, so it
    fails loudly instead. New scores go into a new array.
    """
    scores = cluster.scores.get(app_class)
    if scores is None:
        return flat_table(cluster)

    def build() -> ScoreTable:
        scores.flags.writeable = False
        return ScoreTable(scores, cluster.exists)

    return _cache.get("scores", (scores, cluster.exists), build)


def flat_table(cluster: Cluster) -> ScoreTable:
    """Return a table in which all GPUs are equal (1.0)."""
    exists = cluster.exists
    return _cache.get("flat", (exists,), lambda: ScoreTable(np.ones(exists.shape), exists))


@dataclass(frozen=True, eq=False)
class LevelView:
    """A locality level as the search uses it."""

    name: str
    penalty: float
    group: IntArray
    """(N,) group number of each node, 0..groups-1; -1: in no group. For one-node sets unused."""
    groups: int
    domains: MaskArray | None
    """(N, J) masks of the GPUs of each domain within a node; None: the whole node."""
    one_node: bool
    """Sets of this level lie on one node."""
    any_span: bool = False
    """Neither this nor the other: sets of any span belong to it (PM-First)."""

    @cached_property
    def known(self) -> BoolArray | None:
        """(N,) nodes that lie in a group; None: all of them."""
        inside = self.group >= 0
        return None if every(inside) else inside


def level_views(cluster: Cluster, app_class: str = "") -> tuple[LevelView, ...]:
    """Return the cluster's levels with L for a class, tightest first, remembered by identity."""
    levels = cluster.levels
    views = _cache.get("levels", (levels,), lambda: tuple(_view(level) for level in levels))
    if not any(app_class in level.by_class for level in levels):
        return views

    def build() -> tuple[LevelView, ...]:
        pairs = zip(views, levels, strict=True)
        return tuple(replace(view, penalty=level.of(app_class).value) for view, level in pairs)

    return _cache.get(f"levels of {app_class}", (levels,), build)


def inside_groups(cluster: Cluster, of: IntArray) -> Cluster:
    """The same cluster, of whose levels none holds nodes of two groups.

    ``of``: (N,) group of each node, -1: in none. Remembered by identity, like all that follows
    from the levels.
    """

    def build() -> tuple[LocalityLevel, ...]:
        return tuple(
            level if level.group.ndim == 2 else replace(level, group=_both(level.group, of))
            for level in cluster.levels
        )

    return replace(cluster, levels=_cache.get("inside", (cluster.levels, of), build))


def _both(group: IntArray, of: IntArray) -> IntArray:
    """(N,) numbers of the pairs; -1 where one of the two is."""
    pairs = np.stack([group, of], axis=1)
    inverse = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
    return np.where((group >= 0) & (of >= 0), inverse, -1).astype(np.int64)


def anywhere(cluster: Cluster) -> LevelView:
    """One level that holds every set: locality does not count."""

    def build() -> LevelView:
        group = np.zeros(cluster.shape[0], dtype=np.int64)
        return LevelView("anywhere", 1.0, group, 1, None, one_node=False, any_span=True)

    return _cache.get("anywhere", (cluster.exists,), build)


def two_levels(cluster: Cluster) -> tuple[LevelView, LevelView]:
    """One node before several, and no other difference."""

    def build() -> tuple[LevelView, LevelView]:
        group = anywhere(cluster).group
        return (
            LevelView("node", 1.0, group, 1, None, one_node=True),
            LevelView("cluster", 1.0, group, 1, None, one_node=False),
        )

    return _cache.get("two levels", (cluster.exists,), build)


def model_nodes(cluster: Cluster, model: str) -> BoolArray:
    """(N,) nodes with GPUs of this model, in any case of letters."""

    def build() -> dict[str, BoolArray]:
        names = np.array([(m or "").lower() for m in cluster.model])
        return {str(name): names == name for name in np.unique(names)}

    known = _cache.get("models", (cluster.model,), build)
    found = known.get(model.lower())
    return found if found is not None else np.zeros(len(cluster.model), dtype=np.bool_)


def _view(level: LocalityLevel) -> LevelView:
    group = np.asarray(level.group)
    if group.ndim == 2:
        nodes = np.zeros(group.shape[0], dtype=np.int64)
        return LevelView(level.name, level.penalty, nodes, 1, _domains(group), one_node=True)
    known = group >= 0
    numbers, inverse = np.unique(group[known], return_inverse=True)
    dense = np.full(group.shape, -1, dtype=np.int64)
    dense[known] = inverse.reshape(-1)
    alone = level.name == "node" or len(numbers) == len(group)
    return LevelView(level.name, level.penalty, dense, len(numbers), None, one_node=alone)


def _domains(group: IntArray) -> MaskArray:
    """(N, W) group numbers to (N, J) masks, J = most domains on one node."""
    n, width = group.shape
    masks = np.zeros((n, width), dtype=_mask_type(width))
    for s in range(width):
        together = group == group[:, s : s + 1]
        members = pack(together)
        leader = (group[:, s] >= 0) & ~together[:, :s].any(axis=1)
        masks[:, s] = np.where(leader, members, 0)
    used = max(1, int((masks != 0).sum(axis=1).max(initial=1)))
    order = np.argsort(masks == 0, axis=1, kind="stable")  # those that exist first, in slot order
    return np.take_along_axis(masks, order, axis=1)[:, :used]
