"""Records: values from outside read into types, strictly, and plain values of records; by msgspec.

The annotations of a type are its grammar, with bounds: ``Annotated[int, whole(0, 63)]``. NaN, truth
values as numbers, and numbers as texts are refused. A field that a type does not name is ignored,
unless the type forbids it. Every error is one sentence with the path of the value: ``gpus[1].index:
expected a GPU index, not 64``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import Meta, ValidationError
from msgspec import inspect as types

from slurm_gpu_aware.bounds import quoted

T = TypeVar("T")
Make = Callable[[Any, Any], Any]
"""(type, plain value) -> the value of a type that msgspec does not know. Raises ValueError."""
Step = Any
"""Field, index, or key of a mapping; None: a key that is not known."""

_STORABLE = "^[^\\x00\ud800-\udfff]*\\Z"  # NUL and lone surrogates are not UTF-8 text
_LONGEST_TEXT = 4096
_PLACE = re.compile(r"(?s)(.*?)(?: - at `(key` in `)?\$([^`]*)`)?\Z")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"(?s)Object (contains unknown|missing required) field `(.*)`\Z")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.+:-]{1,60}\Z")
_MOST_KEYS = 1000
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


def text(pattern: str = _STORABLE, what: str | None = None) -> Meta:
    """A text of a pattern, which the store can hold; ``what``: its name in errors."""
    return Meta(pattern=pattern, max_length=_LONGEST_TEXT, description=what)


def words(*some: str) -> Meta:
    """One of some words."""
    return text(f"^({'|'.join(map(re.escape, some))})\\Z", " or ".join(some))


def read(raw: object, kind: type[T], make: Make | None = None, *, at: str = "") -> T:
    """A plain value as a record of a type. Raises ValueError that names the first wrong field.

    ``at``: path of the value. Whole numbers as keys may be texts, as they are in JSON.
    """
    try:
        return _convert(raw, kind, make)
    except RecursionError:
        raise ValueError(f"{at or 'value'}: nested too deep") from None
    except UnicodeEncodeError as exc:
        raise ValueError(f"{at or 'value'}: {quoted(exc.object)} is not UTF-8 text") from None
    except ValidationError as exc:
        message = str(exc)
    try:
        raise ValueError(_sentence(message, raw, kind, make, at))
    except (LookupError, TypeError, AttributeError):  # a key that looks like a path
        raise ValueError(f"{at or 'value'}: {quoted(message)}") from None


def plain(record: object, make: Callable[[Any], Any] | None = None) -> Any:
    """The plain value of a record. ``make``: the same for types that msgspec does not know."""
    return msgspec.to_builtins(record, enc_hook=make, str_keys=True)


def _convert(raw: object, kind: type[T], make: Make | None) -> T:
    return msgspec.convert(raw, kind, dec_hook=make, str_keys=True)


def _sentence(message: str, raw: Any, kind: type, make: Make | None, at: str) -> str:
    """What msgspec says, in our words and with the value."""
    found = _PLACE.match(message)
    reason, of_key, place = found.groups() if found else (message, None, None)
    steps: list[Step] = [
        name or (None if index == "..." else int(index))
        for name, index in _STEP.findall(place or "")
    ]
    path = _with_keys(steps, message, raw, kind, make)
    value = reduce(lambda inner, step: inner[step], path, raw)
    info = reduce(_type_at, path, types.type_info(kind))
    where = _path_text(path, at)
    if wrong := _FIELD.match(reason):
        fields = {field.encode_name: field.type for field in _core(info).fields}
        where = _path_text([*path, wrong[2]], at)
        if wrong[2] not in fields:
            return f"{where}: unknown; known: {', '.join(sorted(fields))}"
        return f"{where}: expected {_what(fields[wrong[2]])}, and it is missing"
    if of_key:
        return f"{where}: each key must be {_what(_core(info).key_type)}"
    if not reason.startswith(("Expected", "Invalid enum", "Number out of range")):
        return f"{where}: {reason}"  # from a check of the type's own
    shown = quoted(value)
    if isinstance(value, list | tuple) and isinstance(_core(info), types.CollectionType):
        shown = f"one of {len(value)}"
    return f"{where}: expected {_what(info)}, not {shown}"


def _with_keys(
    steps: Sequence[Step], message: str, raw: Any, kind: type, make: Make | None
) -> list[Step]:
    """The steps with the keys that msgspec does not name: each is tried alone."""
    path: list[Step] = []
    for step in steps:
        if step is None:
            mapping: Any = reduce(lambda inner, at: inner[at], path, raw)
            for key in islice(mapping, _MOST_KEYS):
                try:
                    _convert(_replaced(raw, path, {key: mapping[key]}), kind, make)
                except ValidationError as exc:
                    if str(exc) == message:
                        step = key
                        break
        path.append(step)
    return path


def _replaced(raw: Any, path: Sequence[Step], value: object) -> Any:
    """A copy of a plain value with another value at a path."""
    if not path:
        return value
    copy = dict(raw) if isinstance(raw, Mapping) else list(raw)
    copy[path[0]] = _replaced(raw[path[0]], path[1:], value)
    return copy


def _path_text(path: Sequence[Step], at: str) -> str:
    """``gpus[1].index``, after ``at``."""
    text = at
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if step and _PLAIN_KEY.match(step) else quoted(step)
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
        return " or ".join(_what(one) for one in info.types if not isinstance(one, types.NoneType))
    if isinstance(info, types.LiteralType):
        return " or ".join(map(str, info.values))
    if isinstance(info, types.IntType | types.FloatType):
        return _KINDS[type(info)] + _range(info.ge, info.le, "from ")
    if isinstance(info, types.CollectionType):
        return "a list" + _range(info.min_length, info.max_length, "of ")
    if isinstance(info, types.TupleType):
        return f"a list of {len(info.item_types)}"
    return _KINDS.get(type(info), "an object")


def _range(least: float | None, most: float | None, word: str) -> str:
    if least is not None and most is not None:
        return f" {word}{least:g} to {most:g}" if least else f" {word}0 to {most:g}"
    if least is None and most is None:
        return ""
    return f" of at most {most:g}" if least is None else f" of at least {least:g}"
