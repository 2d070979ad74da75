"""Facets: values that features add to a round and to its plan, each under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Facet(Generic[T_co]):
    """A value that a feature adds, and that only modules which import this object read."""

    name: str
    """Also in records; no two facets have the same."""
    empty: T_co
    """The value where none was set."""
    kind: Any = None
    """Type of the value in a record; None: no record holds it."""


@dataclass(frozen=True)
class Faceted:
    """What may have facets."""

    facets: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Name -> value."""

    def get(self, facet: Facet[T]) -> T:
        """The value of a facet."""
        found: T = self.facets.get(facet.name, facet.empty)
        return found

    def put(self, facet: Facet[T], value: T) -> Self:
        """The same with another value of a facet."""
        return replace(self, facets={**self.facets, facet.name: value})
