"""Lanes: updates that are sent at the same time, and which job a refusal belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Update: TypeAlias = tuple[str, Mapping[str, str], Mapping[str, int]]
"""Job id, texts, numbers."""
LANES = 4
"""Requests sent at the same time: most of a request's time passes outside slurmctld."""


def lanes_of(updates: Sequence[Update]) -> list[list[Update]]:
    """Updates that may be sent at the same time; those of a job or an array stay in order."""
    lanes: list[list[Update]] = [[] for _ in range(LANES)]
    lane_of: dict[str, int] = {}
    for update in updates:
        number = update[0].partition("_")[0]
        lanes[lane_of.setdefault(number, len(lane_of) % LANES)].append(update)
    return [lane for lane in lanes if lane]


def refused_id(record: str, asked: str) -> str:
    """Id of a refused record as in the request: ``98_[4-9]`` is the rest of array 98."""
    array, _, task = record.partition("_")
    return record if task.isdigit() and asked != array else asked
