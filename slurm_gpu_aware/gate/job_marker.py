"""Job marker: the selector's entry in a job's AdminComment, readable after a crash.

It follows the filter's record, which never changes: phase, Slurm's restart count, Unix time::

    gpuaware/1;tn=gres/gpu:2;sel=released:0:1790000000
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_gpu_aware.filter_rules import MAX_TEXT
from slurm_gpu_aware.model.job_phase import JobPhase

__all__ = ["BOUND", "MARKED", "JobMarker", "marked", "marker_of", "unmarked"]

BOUND = frozenset({JobPhase.PREPARED, JobPhase.RELEASED})
"""Marked phases of a job that the selector has bound to nodes."""
MARKED = (JobPhase.PREPARED, JobPhase.RELEASED, JobPhase.LEFT, JobPhase.OPENED)
"""Phases that a marker names."""
_MARKER = re.compile(rf";sel=({'|'.join(MARKED)}):([0-9]{{1,9}}):([0-9]{{1,12}})\Z")


@dataclass(frozen=True)
class JobMarker:
    """The last step of the selector with a job."""

    phase: JobPhase
    """One of `MARKED`."""
    restarts: int
    at: float
    """Unix seconds."""


def marker_of(admin_comment: str | None) -> JobMarker | None:
    """The marker of an AdminComment; None if there is none."""
    match = _MARKER.search(admin_comment or "")
    return None if match is None else JobMarker(JobPhase(match[1]), int(match[2]), float(match[3]))


def unmarked(admin_comment: str) -> str:
    """The AdminComment as the filter wrote it."""
    return _MARKER.sub("", admin_comment)


def marked(admin_comment: str, phase: JobPhase, restarts: int, at: float) -> str:
    """The AdminComment with a new marker; without a marker if it is too long for Slurm."""
    plain = unmarked(admin_comment)
    text = f"{plain};sel={phase}:{restarts}:{int(at)}"
    return text if len(text) <= MAX_TEXT else plain
