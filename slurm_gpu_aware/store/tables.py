"""Tables of the store whose rows are the records of a type."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Generic, TypeVar

from slurm_gpu_aware.store.database import Row, Store

T = TypeVar("T")

_JSON = frozenset({"nodes", "slots", "asked", "victims", "why", "outcome", "detail"})
"""Fields that are stored as JSON."""
_DECODERS: Mapping[str, Callable[[Any], Any]] = {**dict.fromkeys(_JSON, json.loads), "exact": bool}
_OF_GPUS = "SELECT {} WHERE EXISTS (SELECT 1 FROM gpus WHERE node = ?1 AND slot = ?2)"


class RecordTable(Generic[T]):
    """A table with the fields of a dataclass or named tuple as columns.

    A column of a time ends in ``_unix``; that of ``app_class`` is ``class``. ``others``: fields
    without a column. ``inner``: type of each field that is a record, a sequence or a mapping, which
    is stored as JSON.
    """

    def __init__(self, table: str, kind: type[T], *others: str, **inner: Any) -> None:
        names = list(kind.__annotations__)
        self._table = table
        self._kind: Callable[..., T] = kind
        self._values_of: Callable[[Row], Any] = itemgetter(*map(_column_of, names))
        self._own = [name for name in names if name not in ("id", *others)]
        decoders = dict(_DECODERS)
        decoders |= {name: partial(_inner, of) for name, of in inner.items()}
        self._decoders = [(at, decoders[n]) for at, n in enumerate(names) if n in decoders]

    def add(self, store: Store, record: T) -> int | None:
        """Store a record; return its number."""
        return store.execute(self._insert(), self._values(record)).lastrowid

    def put(self, store: Store, records: Iterable[T], verb: str = "INSERT", **more: object) -> None:
        """Store records, with the values of further columns."""
        rows = [[*self._values(record), *more.values()] for record in records]
        store.executemany(self._insert(*more, verb=verb), rows)

    def put_all(self, store: Store, records: Iterable[T]) -> None:
        """Replace all records; those of GPUs that the store does not have are dropped."""
        with store.write():
            store.execute(f"DELETE FROM {self._table}")  # noqa: S608
            rows = list(map(self._values, records))
            store.executemany(self._insert(values=_OF_GPUS), rows)

    def read(self, store: Store, tail: str, params: Sequence[Any] = ()) -> list[T]:
        """The records that the end of a SELECT statement chooses."""
        rows = store.query(f"SELECT * FROM {self._table} {tail}", params)  # noqa: S608
        return list(map(self.record, rows))

    def record(self, row: Row) -> T:
        """The record of a row that has its columns."""
        values = self._values_of(row)
        if self._decoders:
            values = list(values)
            for at, decoded in self._decoders:
                values[at] = decoded(values[at])
        return self._kind(*values)

    def _insert(self, *more: str, verb: str = "INSERT", values: str = "VALUES ({})") -> str:
        columns = [*map(_column_of, self._own), *more]
        marks = ", ".join(f"?{n}" for n in range(1, len(columns) + 1))
        return f"{verb} INTO {self._table} ({', '.join(columns)}) {values.format(marks)}"

    def _values(self, record: T) -> list[Any]:
        return [_encoded(name, getattr(record, name)) for name in self._own]


def _column_of(name: str) -> str:
    if name == "app_class":
        return "class"
    return f"{name}_unix" if name == "at" or name.endswith("_at") else name


def _inner(kind: Any, text: str) -> Any:
    from slurm_gpu_aware import records  # nodes read the store without msgspec

    return records.read(json.loads(text), kind)


def _encoded(field: str, value: Any) -> Any:
    """The value for SQLite; accepts NumPy scalars."""
    if field in _JSON or (isinstance(value, Mapping | tuple) and not is_dataclass(value)):
        return dump(value)
    if is_dataclass(value):
        from slurm_gpu_aware import records

        return dump(records.plain(value))
    if value is None or isinstance(value, str | int | float):
        return value
    return value.item()


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
