"""Records: values from outside read into types, strictly, and plain values of records; by msgspec.

The annotations of a type are its grammar, with bounds: ``Annotated[int, whole(0, 63)]``. NaN, truth
values as numbers, and numbers as texts are refused. A field that a type does not name is ignored,
unless the type forbids it. Every error is one sentence with the path of the value: ``gpus[1].index:
expected a GPU index, not 64``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import islice
from threading import RLock
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, ValidationError
from msgspec import inspect as types

from slurm_gpu_aware.bounds import quoted

T = TypeVar("T")
Make = Callable[[Any, Any], Any]
"""(type, plain value) -> the value of a type that msgspec does not know. Raises ValueError."""
Step = Any  # Field, index, or key of a mapping; None: a key that is not known.

_ONE_AT_A_TIME = RLock()
"""msgspec 0.22 ends the process (SIGSEGV) when two threads first meet a type at once."""

MOST = 10**9  # Bound of numbers in any unit: 30 years in seconds.
_STORABLE = "[^\\x00\ud800-\udfff]*"  # NUL and lone surrogates are not UTF-8 text
_LONGEST_TEXT = 4096
_MOST_KEYS = 1000
# Compiled by the first error only: that takes longer than reading a record.
_PLACE = r"(?s)(.*?)(?: - at `(key` in `)?\$([^`]*)`)?\Z"
_STEP = r"\.(\w+)|\[(\d+|\.\.\.)\]"
_FIELD = r"(?s)Object (contains unknown|missing required) field `(.*)`\Z"
_PLAIN_KEY = r"[A-Za-z0-9_.+:-]{1,60}\Z"
_KINDS: Mapping[type, str] = {
    types.BoolType: "true or false",
    types.IntType: "a whole number",
    types.FloatType: "a number",
    types.StrType: "a text",
    types.NoneType: "nothing",
}


def whole(least: int, most: int, what: str | None = None) -> Meta:
    """Bounds of a whole number; ``what``: its name in errors."""
    return Meta(ge=least, le=most, description=what)


def number(least: float, most: float) -> Meta:
    """Bounds of a number."""
    return Meta(ge=float(least), le=float(most))


def above(least: float, most: float = MOST) -> Meta:
    """Bounds of a number that is more than ``least``."""
    return Meta(gt=float(least), le=float(most))


def text(pattern: str = _STORABLE, what: str | None = None) -> Meta:
    """A text that matches a pattern as a whole; ``what``: its name in errors."""
    return Meta(pattern=f"^(?:{pattern})\\Z", max_length=_LONGEST_TEXT, description=what)


def words(*some: str) -> Meta:
    """One of some words."""
    return text("|".join(map(re.escape, some)), " or ".join(some))


Text = Annotated[str, text()]
Seconds = Annotated[float, number(0, MOST)]


def read(raw: Any, kind: type[T], make: Make | None = None, *, closed: bool = False) -> T:
    """A plain value as a record of a type. Raises ValueError that names the first wrong field.

    Whole numbers as keys may be texts, as they are in JSON. ``closed``: a key that a dataclass
    does not have is wrong; otherwise it is ignored.
    """
    try:
        record = _convert(raw, kind, make)
    except RecursionError:
        raise ValueError("value: nested too deep") from None
    except UnicodeEncodeError as exc:
        raise ValueError(f"value: {quoted(exc.object)} is not UTF-8 text") from None
    except ValidationError as exc:
        message = str(exc)
    else:
        if closed:
            _check_known(raw, record, [])
        return record
    try:
        raise ValueError(_sentence(_Tried(message, raw, kind, make)))
    except (LookupError, TypeError, AttributeError):  # a key that looks like a path
        raise ValueError(f"value: {quoted(message)}") from None


def plain(record: object, make: Callable[[Any], Any] | None = None) -> Any:
    """The plain value of a record. ``make``: the same for types that msgspec does not know."""
    with _ONE_AT_A_TIME:
        return msgspec.to_builtins(record, enc_hook=make, str_keys=True)


def _convert(raw: object, kind: type[T], make: Make | None) -> T:
    with _ONE_AT_A_TIME:
        return msgspec.convert(raw, kind, dec_hook=make, str_keys=True)


def _check_known(raw: Any, record: Any, path: list[Step]) -> None:
    """Raise ValueError for a key that a dataclass does not have."""
    known = record if isinstance(record, Mapping) else getattr(record, "__dataclass_fields__", None)
    if known is None:
        return
    for key, value in raw.items():
        if key not in known:
            raise ValueError(
                f"{_path_text([*path, key])}: unknown; known: {', '.join(sorted(known))}"
            )
        inner = record[key] if isinstance(record, Mapping) else getattr(record, key)
        _check_known(value, inner, [*path, key])


class _Tried(NamedTuple):
    """A value that is not of a type, and what msgspec says."""

    message: str
    raw: Any
    kind: Any
    make: Make | None


def _sentence(tried: _Tried) -> str:
    """What msgspec says, in our words and with the value."""
    found = re.match(_PLACE, tried.message)
    reason, of_key, place = found.groups() if found else (tried.message, None, None)
    steps = [
        name or (None if index == "..." else int(index))
        for name, index in re.findall(_STEP, place or "")
    ]
    path = _with_keys(steps, tried)
    value = _inside(tried.raw, path)
    info = reduce(_type_at, path, types.type_info(tried.kind))
    where = _path_text(path)
    if wrong := re.match(_FIELD, reason):
        fields = {field.encode_name: field.type for field in _core(info).fields}
        where = _path_text([*path, wrong[2]])
        if wrong[2] not in fields:
            return f"{where}: unknown; known: {', '.join(sorted(fields))}"
        return f"{where}: expected {_what(fields[wrong[2]])}, and it is missing"
    if of_key:
        key = quoted(_wrong_key(path, tried))
        return f"{where}: expected keys that are {_what(_core(info).key_type)}, not {key}"
    if not reason.startswith(("Expected", "Invalid enum", "Number out of range")):
        return f"{where}: {reason}"  # from a check of the type's own
    shown = quoted(value)
    if isinstance(value, list | tuple) and isinstance(_core(info), types.CollectionType):
        shown = f"one of {len(value)}"
    return f"{where}: expected {_what(info)}, not {shown}"


def _with_keys(steps: Sequence[Step], tried: _Tried) -> list[Step]:
    """The steps with the keys that msgspec does not name."""
    path: list[Step] = []
    for step in steps:
        path.append(_wrong_key(path, tried) if step is None else step)
    return path


def _wrong_key(path: Sequence[Step], tried: _Tried) -> Step:
    """The key of a mapping that leads to the message: each is tried alone."""
    mapping = _inside(tried.raw, path)
    for key in islice(mapping, _MOST_KEYS):
        try:
            _convert(_replaced(tried.raw, path, {key: mapping[key]}), tried.kind, tried.make)
        except ValidationError as exc:
            if str(exc) == tried.message:
                return key
    return None


def _inside(raw: Any, path: Sequence[Step]) -> Any:
    return reduce(lambda inner, step: inner[step], path, raw)


def _replaced(raw: Any, path: Sequence[Step], value: object) -> Any:
    """A copy of a plain value with another value at a path."""
    if not path:
        return value
    copy = dict(raw) if isinstance(raw, Mapping) else list(raw)
    copy[path[0]] = _replaced(raw[path[0]], path[1:], value)
    return copy


def _path_text(path: Sequence[Step]) -> str:
    """``gpus[1].index``"""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if step and re.match(_PLAIN_KEY, step) else quoted(step)
            text += f".{name}" if text else name
    return text or "value"


def _core(info: Any) -> Any:
    """A type without its description, and without None beside it."""
    while isinstance(info, types.Metadata | types.UnionType):
        if isinstance(info, types.Metadata):
            info = info.type
            continue
        some = [one for one in info.types if not isinstance(one, types.NoneType)]
        if len(some) != 1:
            break
        info = some[0]
    return info


def _type_at(info: Any, step: Step) -> Any:
    """The type of a part."""
    info = _core(info)
    if isinstance(info, types.DictType):
        return info.value_type
    if isinstance(info, types.CollectionType):
        return info.item_type
    if isinstance(info, types.TupleType):
        return info.item_types[step]
    if isinstance(step, int):  # of a NamedTuple
        return info.fields[step].type
    return next(field.type for field in info.fields if field.encode_name == step)


def _what(info: Any) -> str:
    """The words for a type: its description, or its kind and bounds."""
    if isinstance(info, types.Metadata):
        own = (info.extra_json_schema or {}).get("description")
        return str(own) if own else _what(info.type)
    if isinstance(info, types.UnionType):
        kinds = [one for one in info.types if not isinstance(one, types.NoneType)]
        if any(isinstance(_core(one), types.FloatType) for one in kinds):
            kinds = [one for one in kinds if not isinstance(_core(one), types.IntType)]
        return " or ".join(map(_what, kinds))
    if isinstance(info, types.LiteralType):
        return " or ".join(map(str, info.values))
    if isinstance(info, types.IntType | types.FloatType):
        return _KINDS[type(info)] + _bounds(info)
    if isinstance(info, types.CollectionType):
        least, most = info.min_length, info.max_length
        ends = {"at least": least, "at most": most}
        size = " and ".join(f"{word} {end}" for word, end in ends.items() if end is not None)
        entries = f" of {size} entries" if size else ""
        return f"a list{entries}, each {_what(info.item_type)}"
    if isinstance(info, types.TupleType):
        return f"a list of {len(info.item_types)}"
    return _KINDS.get(type(info), "keys with values")


def _bounds(info: types.IntType | types.FloatType) -> str:
    """The words for the bounds of a number."""
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    ends = {"of at least": info.ge, "above": info.gt, "up to": info.le, "below": info.lt}
    found = [f"{word} {end:g}" for word, end in ends.items() if end is not None]
    return f" {' and '.join(found)}" if found else ""
