"""Facets: values that features add to a request, a round or its plan, under names of their own.

Sections: settings of features, each a section of the configuration file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Rules = Iterator[tuple[bool, str, str]]  # (whether the rule holds, key, error if not).


def changed(value: T, **fields: Any) -> T:
    """Like `dataclasses.replace`, but several times as fast, without ``__init__``.

    What is cached is kept, so the class must have no cached property that depends on a changed
    field.
    """
    same: T = object.__new__(type(value))
    vars(same).update(vars(value), **fields)
    return same


@dataclass(frozen=True, eq=False)
class Facet(Generic[T_co]):
    """A value that a feature adds, and that only modules which import this object read."""

    name: str  # Also in records; no two facets have the same.
    empty: T_co  # The value where none was set.
    kind: Any = None  # Type of the value in a record; None: no record holds it.


def named(facet: Facet[T], value: T) -> dict[str, T]:
    """The value under the name of its facet, for `Faceted.facets`; nothing if it is empty."""
    return {} if value is facet.empty or value == facet.empty else {facet.name: value}


@dataclass(frozen=True, eq=False)
class Faceted:
    """What may have facets. How it is compared is said by the class that has them."""

    facets: Mapping[str, Any] = field(default_factory=dict, kw_only=True)  # Name -> value.

    def get(self, facet: Facet[T]) -> T:
        """The value of a facet."""
        found: T = self.facets.get(facet.name, facet.empty)
        return found

    def put(self, facet: Facet[T], value: T) -> Self:
        """The same with another value of a facet."""
        if value is self.get(facet):
            return self
        return changed(self, facets={**self.facets, facet.name: value})


class Section:
    """A frozen dataclass with defaults; its annotations are read by `records`.

    A stage that has a facet of this type among its ``inputs`` gets the site's settings.
    """

    name: ClassVar[str]

    def rules(self) -> Rules:
        """What one setting says of another."""
        return iter(())

    def plan(self) -> Mapping[str, Any]:
        """Name -> value of what it decides of the settings of plans (`PlanSettings`)."""
        return {}


def decided(sections: Mapping[type, Section]) -> dict[str, Any]:
    """What sections decide of the settings of plans."""
    return {name: value for one in sections.values() for name, value in one.plan().items()}
