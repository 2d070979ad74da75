"""Reading of JSON objects that come from another host: every field is checked and bounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, quoted

_UNSTORABLE = re.compile("[\\x00\ud800-\udfff]")  # NUL and lone surrogates are not UTF-8 text
_MOST = 1e9
"""Limit of watts, degrees and shares."""

T = TypeVar("T")


class JsonObject:
    """A JSON object of the report. Methods raise ValueError or TypeError that names the field."""

    def __init__(self, raw: Mapping[str, Any], where: str = "") -> None:
        self.raw, self.where = raw, where

    def at(self, key: str) -> str:
        """The path of a field."""
        return f"{self.where}.{key}" if self.where else key

    def objects(self, key: str) -> list[JsonObject]:
        """A list of objects; empty: the field is missing."""
        value = self.raw.get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
            raise TypeError(f"{self.at(key)}: expected a list of objects")
        return [JsonObject(entry, f"{self.at(key)}[{i}]") for i, entry in enumerate(value)]

    def text(self, key: str) -> str:
        """A text that the store can hold."""
        value = self.raw.get(key)
        if not isinstance(value, str) or len(value) > 4096 or _UNSTORABLE.search(value):
            raise TypeError(f"{self.at(key)}: expected a text, not {quoted(value)}")
        return value

    def whole(
        self, key: str, least: int = 0, most: int = 1 << 53, what: str = "a whole number"
    ) -> int:
        """A whole number of these bounds; ``what``: its name in the error."""
        value = self.raw.get(key)
        if type(value) is not int or not least <= value <= most:
            raise TypeError(f"{self.at(key)}: expected {what}, not {quoted(value)}")
        return value

    def slot(self, key: str) -> int:
        """Slurm's index of a GPU."""
        return self.whole(key, most=MAX_GPUS_PER_NODE - 1, what="a GPU index")

    def number(self, key: str, least: float = 0.0, most: float = _MOST) -> float:
        """A number of these bounds."""
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{self.at(key)}: expected a number, not {quoted(value)}")
        if not least <= value <= most:  # NaN is not either
            raise ValueError(f"{self.at(key)}: {quoted(value)} is not {least:g} to {most:g}")
        return float(value)

    def maybe(self, read: Callable[..., T], key: str, *bounds: float) -> T | None:
        """The value that the method ``read`` returns; None: the field is missing or null."""
        return None if self.raw.get(key) is None else read(key, *bounds)
