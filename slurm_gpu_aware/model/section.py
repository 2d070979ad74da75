"""Section: settings of a feature, as a section of the configuration file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

Rules = Iterator[tuple[bool, str, str]]
"""(whether the rule holds, key, error if not)."""


class Section:
    """A frozen dataclass with defaults; its annotations are read by `records`.

    A stage that has a facet of this type among its ``inputs`` gets the site's settings.
    """

    name: ClassVar[str]

    def rules(self) -> Rules:
        """What one setting says of another."""
        return iter(())
