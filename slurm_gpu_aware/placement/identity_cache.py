"""Cache of results by the identity of the objects that they were computed from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_SIZE = 24  # results of each function
_BY_VALUE = frozenset({str, int})


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
