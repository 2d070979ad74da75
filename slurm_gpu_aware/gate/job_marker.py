"""The selector's own entry in a job's AdminComment: how far a job came, readable after a crash.

It stands last, behind what the filter wrote::

    gpuaware/1;tn=gres/gpu:2;sel=released:0:1790000000

that is state, Slurm's restart count, and Unix time. The rest of the AdminComment is never touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_gpu_aware.filter_rules import MAX_TEXT

__all__ = ["HAND", "PREPARED", "RELEASED", "Mark", "mark_of", "marked", "unmarked"]

PREPARED = "prepared"
"""Pinned, the gate still closed."""
RELEASED = "released"
"""Pinned, the gate opened by the selector."""
HAND = "hand"
"""The gate opened by an operator: the selector leaves the job alone."""

_MARK = re.compile(r";sel=(prepared|released|hand):([0-9]{1,9}):([0-9]{1,12})\Z")


@dataclass(frozen=True)
class Mark:
    """How far the selector came with a job."""

    state: str
    restarts: int
    at: float
    """Unix seconds."""


def mark_of(admin_comment: str | None) -> Mark | None:
    """The mark of an AdminComment; None if there is none."""
    match = _MARK.search(admin_comment or "")
    return None if match is None else Mark(match[1], int(match[2]), float(match[3]))


def unmarked(admin_comment: str) -> str:
    """The AdminComment as the filter wrote it."""
    return _MARK.sub("", admin_comment)


def marked(admin_comment: str, state: str, restarts: int, at: float) -> str:
    """The AdminComment with a new mark; without any if it would become too long for Slurm."""
    plain = unmarked(admin_comment)
    text = f"{plain};sel={state}:{restarts}:{int(at)}"
    return text if len(text) <= MAX_TEXT else plain
