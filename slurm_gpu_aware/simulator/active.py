"""Active jobs, from arrival to end, fair shares, and events; in seconds of the trace."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count
from typing import Any

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpus, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.slurm.multifactor import (
    Multifactor,
    fair_tree,
    later_usage,
    priorities,
    summed,
)

_SLACK_GPU_S = 1e-3  # Tolerance of the threshold: attained service is a sum of many rounded steps.


@dataclass(slots=True)
class ActiveJob:
    """A job that waits or runs."""

    position: int  # Index in the trace.
    job: TraceJob
    request: Request
    turn: tuple[tuple[int, ...], str]
    """``order.id_key`` of the job: breaks ties in the queue as the planner does."""
    done_s: float = 0.0  # Work done so far, in seconds at slowdown 1.
    done_before_s: float = 0.0  # Work done before it got its current GPUs.
    estimated_at: tuple[int, float] | None = None
    """Runs of its user that its estimate is based on, and its work done then."""
    service_gpu_s: float = 0.0  # Attained service: GPU seconds held.
    placed: Assignment | None = None  # GPUs that it holds; None: it waits.
    last: Assignment | None = None  # GPUs that it held last; None: it never ran.
    target: Assignment | None = None
    """GPUs to which it moves while it waits to run again; None: it is on no move."""
    alone: float = 1.0  # Slowdown on its GPUs without interference.
    slowdown: float = 1.0
    run_s: float = 0.0  # Time on GPUs so far.
    start_s: float = math.nan  # First start; NaN: it never started.
    end_s: float = math.nan
    killed: bool = False  # It ended at its time limit, with work left.
    preemptions: int = 0
    migrations: int = 0
    size: int = 0  # GPUs that it holds, or asks for while it waits.
    clock_mhz: int | None = None  # SM clock of its GPUs; None: the default clock.
    power_limit_w: int | None = None  # Power limit of each of its GPUs; None: the site's own.
    stretch: float = 1.0
    """Time at its present size and clock / time at the size of the trace and the default clock."""
    least_stretch: float = 1.0  # The same at the size that it asks for, its least one.
    energy_j: float = 0.0  # Energy of its GPUs up to ``metered_s``.
    above_idle_w: float = 0.0
    """Power that its GPUs draw beyond that of idle ones while it makes progress."""
    metered_s: float = 0.0
    moved_s: float | None = None  # When it last moved (mode ``moves``); None: never.
    placed_s: float = math.nan  # When it got its current GPUs; NaN: it waits.
    limit_end_s: float = math.inf  # Time at which it is killed if it still has its current GPUs.
    since_s: float = 0.0  # Time up to which progress is credited.
    resume_s: float = 0.0
    """Time from which it progresses (later than ``since_s`` after a migration)."""
    version: int = 0  # Changes with the time of its end.
    holder: RunningJob | None = None  # Cache of :meth:`as_holder`.

    def gpus(self) -> Gpus:
        """The GPUs that it holds; empty while it waits."""
        return () if self.placed is None else self.placed.gpus

    @property
    def finished(self) -> bool:
        """Whether its work is done, but for errors of rounding: Unix times are exact to 0.2 us."""
        rounding_s = 1e-9 * self.job.duration_s + 4 * math.ulp(self.since_s) / self.slowdown
        return self.job.duration_s - self.done_s <= rounding_s

    def credit(self, now: float) -> None:
        """Credit the progress made since the last credit."""
        held = now - self.since_s
        self.run_s += held
        self.service_gpu_s += held * self.size
        if now > self.resume_s:
            self.done_s += (now - self.resume_s) / self.slowdown
            self.resume_s = now
        self.since_s = now

    def end_at_pace(self, slowdown: float, now: float) -> float:
        """Continue at another slowdown from ``now``; return the time of its end: its work is done,
        or its limit is reached."""
        self.credit(now)
        self.slowdown = slowdown
        self.version += 1
        left = max(self.job.duration_s - self.done_s, 0.0)
        done_at = max(self.resume_s, now) + left * slowdown
        return min(done_at, self.limit_end_s)

    def as_holder(self) -> RunningJob:
        """The running job as the planner sees it."""
        if self.holder is None:
            self.holder = RunningJob(
                job_id=self.job.job_id,
                gpus=self.gpus(),
                end_s=self.limit_end_s,
                start_s=self.placed_s,
                app_class=self.job.app_class,
                application=self.job.model,
                user=self.job.user or "",
            )
        return self.holder


def same_gpus(one: Assignment | None, other: Assignment) -> bool:
    """Whether both are on the same GPUs; where Slurm chooses the GPUs, on the same nodes."""
    if one is None or one.nodes != other.nodes:
        return False
    return one.slots == other.slots if other.exact else one.size == other.size


def order_key(settings: SimSettings) -> Callable[[ActiveJob], tuple[float, ...]]:
    """A sort key, smallest first; submission breaks ties, then the job's number (``Rounds``).

    LAS has two queues (Gu et al., Tiresias, NSDI'19, section 3.2): jobs below the threshold of
    attained service, then jobs above it, each ordered by submission.
    """
    limit = settings.las_threshold_gpu_s - _SLACK_GPU_S
    keys: dict[str, Callable[[ActiveJob], float]] = {
        "fifo": lambda active: 0.0,
        "multifactor": lambda active: 0.0,  # a round has the priorities
        "las": lambda active: float(active.service_gpu_s >= limit),
        "srtf": lambda active: active.job.duration_s - active.done_s,
        "priority": lambda active: -active.job.priority,
        "edf": lambda active: math.inf if active.job.deadline_s is None else active.job.deadline_s,
    }
    first = keys[settings.order]
    return lambda active: (first(active), active.job.submit_s)


_UNNAMED = "(none)"  # Account or user of a job that has none.


class FairShares:
    """Usage of a run and the priorities that follow from it; renewed each calculation period."""

    def __init__(self, site: Multifactor, jobs: Sequence[TraceJob], cluster: Cluster) -> None:
        self.site = site
        of_jobs = [(job.account or _UNNAMED, job.user or _UNNAMED) for job in jobs]
        self.tree = site.associations.with_users(sorted(set(of_jobs)))
        self._place = np.array([self.tree.places[name] for name in of_jobs], dtype=np.int64)
        self._nodes, self._gpus = len(cluster.nodes), int(cluster.exists.sum())
        self._usage, self._held, self._new = np.zeros((3, len(self.tree.names)))
        self._factor = fair_tree(self.tree, self._usage)
        self._at_s = self._renewed_s = jobs[0].submit_s if jobs else 0.0

    def change(self, position: int, gpus: int, now: float) -> None:
        """A job gets GPUs, or gives up ``-gpus``."""
        self._until(now)
        self._held[self._place[position]] += gpus

    def ranked(self, queue: Sequence[ActiveJob], now: float) -> list[Request]:
        """The requests with their priorities."""
        self._until(now)
        positions = [active.position for active in queue]
        asked = [(a.request.submit_s, a.request.min_nodes, a.size, a.job.priority) for a in queue]
        submit_s, nodes, gpus, more = np.array(asked, dtype=np.float64).reshape(-1, 4).T
        factor = self._factor[self._place[positions]]
        shares = nodes / self._nodes, gpus / self._gpus
        found = priorities(self.site, now - submit_s, factor, *shares, more)
        pairs = zip(queue, found.tolist(), strict=True)
        return [replace(active.request, priority=value) for active, value in pairs]

    def _until(self, now: float) -> None:
        """Add what is in use until ``now``, and renew the factors at the end of a period."""
        period = self.site.calc_period_s
        passed = int((now - self._renewed_s) // period)
        if passed > 0:
            end_s = self._renewed_s + period
            self._new += self._held * (end_s - self._at_s)
            self._usage = later_usage(self.site, self._usage, self._new / period, 1)
            self._usage = later_usage(self.site, self._usage, self._held, passed - 1)
            self._factor = fair_tree(self.tree, summed(self.tree, self._usage))
            self._new[:] = 0.0
            self._renewed_s += passed * period
            self._at_s = self._renewed_s
        self._new += self._held * (now - self._at_s)
        self._at_s = now


class Kind(IntEnum):
    """Kinds of events; of those of one time the lesser kind happens first."""

    END = 0  # The work of a job is done at its present pace, or its limit is reached.
    FREE = 1  # A background job ends.
    HOLD = 2  # A background job starts.
    TAKE = 3  # Background jobs take GPUs that they lacked.
    ARRIVAL = 4  # A job is submitted.
    CROSSING = 5  # A job, if it has kept its GPUs, reaches the LAS threshold.
    WAKE = 6  # The policy accepts a worse set for a postponed job, or a job should grow.
    ROUND = 7


_MARK = {Kind.END: "version", Kind.CROSSING: "placed_s", Kind.WAKE: "wake_s"}
"""Kind -> field of its subject; the event is void once that has changed."""


class EventClock:
    """The time of a run, and its coming events. ``round_s``: as of `SimSettings`."""

    def __init__(self, round_s: float | None) -> None:
        self.round_s = round_s
        self.now = 0.0
        self.planned_at = -math.inf
        """Time of the last round."""
        self.wake_s: float | None = None
        """Time of the valid ``WAKE``; None: there is none."""
        self._heap: list[tuple[float, Kind, int, Any, object]] = []
        """Time, kind, number, subject, and its mark when the event was added."""
        self._numbers = count()

    def add(self, time: float, kind: Kind, subject: Any = None) -> None:
        """Add an event of a job (``subject``); one of the past happens now."""
        mark = getattr(subject, _MARK[kind]) if kind in _MARK else None
        heapq.heappush(self._heap, (time, kind, next(self._numbers), subject, mark))

    def wake_at(self, time: float | None) -> None:
        """Replace the ``WAKE``; None: there is to be none."""
        if time != self.wake_s:
            self.wake_s = time
            if time is not None:
                self.add(time, Kind.WAKE, self)

    def pop(self) -> tuple[float, Kind, Any] | None:
        """Remove the next event that is not void; return its time, kind and subject."""
        while self._heap:
            time, kind, _, subject, mark = heapq.heappop(self._heap)
            if kind not in _MARK or getattr(subject, _MARK[kind]) == mark:
                if kind is Kind.WAKE:
                    self.wake_s = None
                return time, kind, subject
        return None

    def next_round(self) -> float:
        """First time, now or later, at which a round may run."""
        if self.round_s is None:
            return self.now
        boundary = math.ceil(self.now / self.round_s) * self.round_s
        return boundary if boundary > self.planned_at else self.planned_at + self.round_s
