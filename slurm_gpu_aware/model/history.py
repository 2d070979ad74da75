"""History of measurements: two of them to compare, and reports of slow GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Pair(NamedTuple):
    """Two measurements of a GPU for a class: the newest one, and the one that it is compared with.

    Values are times of the runs in ms, at least one each.
    """

    node: str
    slot: int
    app_class: str
    model: str
    """Empty: not known."""
    before_ms: Sequence[float]
    now_ms: Sequence[float]
    before_at: float
    """Unix time."""
    now_at: float


class Alarm(NamedTuple):
    """A slow GPU that was reported."""

    node: str
    slot: int
    app_class: str
    before: float
    """PM score before the GPU became slow."""
    now: float
    """PM score in the report."""
