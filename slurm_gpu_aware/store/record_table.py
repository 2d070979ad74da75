"""Table of the store whose rows are the records of a dataclass, some fields as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slurm_gpu_aware.store.database import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_JSON = frozenset({"nodes", "slots", "asked", "victims", "why", "outcome", "detail"})
"""Fields that are stored as JSON."""
T = TypeVar("T", bound="DataclassInstance")


class RecordTable(Generic[T]):
    """A table with the fields of a dataclass as columns; names of times end in ``_unix``."""

    def __init__(self, name: str, kind: type[T]) -> None:
        self._kind: Callable[..., T] = kind
        self._column_of = {
            f.name: f"{f.name}_unix" if f.name == "at" or f.name.endswith("_at") else f.name
            for f in fields(kind)
        }
        self._fields = [field for field in self._column_of if field != "id"]
        columns = ", ".join(self._column_of[field] for field in self._fields)
        marks = ", ".join("?" for _ in self._fields)
        self._insert = f"INSERT INTO {name} ({columns}) VALUES ({marks})"  # noqa: S608
        self._select = f"SELECT * FROM {name} "  # noqa: S608

    def add(self, store: Store, record: T) -> int | None:
        """Store a record; return its number."""
        values = [_encoded(field, getattr(record, field)) for field in self._fields]
        return store.execute(self._insert, values).lastrowid

    def read(self, store: Store, tail: str, params: Sequence[Any] = ()) -> list[T]:
        """The records that the end of a SELECT statement chooses."""
        return [
            self._kind(**{f: _decoded(f, row[column]) for f, column in self._column_of.items()})
            for row in store.query(self._select + tail, params)
        ]


def _encoded(field: str, value: Any) -> Any:
    """The value for SQLite; accepts NumPy scalars."""
    if field in _JSON:
        return dump(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return value.item()


def _decoded(field: str, value: Any) -> Any:
    if field in _JSON:
        return json.loads(value)
    return bool(value) if field == "exact" else value


def dump(value: Any) -> str:
    """Strict JSON: infinite and undefined numbers (no time limit, 0/0) become null."""
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """A plain value for a NumPy scalar or array, a set, a mapping or a path."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return _finite(_plain(value))
