"""Settings of a round and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.registry import DEFAULT

__all__ = ["Plan", "PlanSettings", "Waiting"]


@dataclass(frozen=True)
class PlanSettings:
    """How a site wants its rounds."""

    policy: str = DEFAULT
    """Default policy; a request may name another."""
    classes: tuple[str, ...] = ("A", "B", "C")
    """Most sensitive first; inside the guaranteed prefix they place in this order."""
    class_clock_mhz: Mapping[str, int] = field(default_factory=dict)
    """Class -> SM clock for requests without one (or with ``auto``); absent: default clock."""
    max_clock_mhz: int | None = None
    """What ``freq=max`` means; None: leave the default."""
    backfill: bool = True
    """EASY backfill behind the first job that does not fit."""
    backfill_depth: int = 1000
    """At most this many jobs behind the head are tried."""

    def clock_mhz(self, request: Request) -> int | None:
        """Return the SM clock to lock for a request, MHz, or None to leave the default.

        A number of the request counts as it is, ``max`` is the site's largest clock, and ``auto``
        or nothing is the default of the job's class. Any other word leaves the default.
        """
        wish = request.clock
        if wish is None or wish == "auto":
            return self.class_clock_mhz.get(request.app_class)
        if wish == "max":
            return self.max_clock_mhz
        if isinstance(wish, int):
            return wish
        return int(wish) if wish.isascii() and wish.isdigit() else None


@dataclass(frozen=True)
class Waiting:
    """A job that stays parked, and why."""

    job_id: str
    reason: str
    """One sentence for a person."""
    shadow_start_s: float | None = None
    """Latest start by the shadow reservation; None: no reservation was made for it."""
    infeasible: bool = False
    """Not even the idle cluster, as it stands, has a place for it."""
    by_policy: bool = False
    """An option of its policy is the reason: what it forbids, Slurm would not keep to either."""


@dataclass(frozen=True)
class Plan:
    """Outcome of a round. Every request of the queue is in exactly one of the two lists."""

    assignments: tuple[Assignment, ...]
    waiting: tuple[Waiting, ...]
