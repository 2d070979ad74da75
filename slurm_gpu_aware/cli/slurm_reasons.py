"""Slurm's reasons of jobs that something else than the gate holds, in words."""

from __future__ import annotations

import re

HELD = "held by "
"""Start of a reason of the selector that names one of Slurm's."""
_WORDS = {
    "BeginTime": "its begin time has not come",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "a job that it depends on ended otherwise, so it never starts",
    "JobHeldUser": "its owner holds it; to let it go: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "JobArrayTaskLimit": "its array runs as many tasks as its limit allows",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "ReservationDeleted": "its reservation was deleted",
    "Reservation": "its reservation has not begun",
    "BadConstraints": "no node has what it asks for",
}
_LIMIT = re.compile(r"(QOS|Assoc)[A-Za-z]*\Z")


def held_words(reason: str) -> str:
    """``its begin time has not come (BeginTime)``; a text of the selector stays as it is."""
    if not reason.startswith(HELD):
        return reason
    name, more, rest = reason.removeprefix(HELD).partition(";")
    return slurm_words(name) + more + rest


def slurm_words(name: str) -> str:
    """The same of Slurm's own word for a reason."""
    words = _WORDS.get(name)
    if words is None and (match := _LIMIT.match(name)) is not None:
        whose = "QOS" if match[1] == "QOS" else "account"
        words = f"a limit of its {whose} is reached"
    return f"Slurm holds it: {name.replace('_', ' ')}" if words is None else f"{words} ({name})"
