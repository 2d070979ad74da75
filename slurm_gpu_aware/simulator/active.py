"""Active jobs, from arrival to end, and their users' fair shares; in seconds of the trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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

_SLACK_GPU_S = 1e-3
"""Tolerance of the threshold: attained service is a sum of many rounded steps."""


@dataclass(slots=True)
class ActiveJob:
    """A job that waits or runs."""

    position: int
    """Index in the trace."""
    job: TraceJob
    request: Request
    turn: tuple[tuple[int, ...], str]
    """``order.id_key`` of the job: breaks ties in the queue as the planner does."""
    done_s: float = 0.0
    """Work done so far, in seconds at slowdown 1."""
    done_before_s: float = 0.0
    """Work done before it got its current GPUs."""
    estimated_at: tuple[int, float] | None = None
    """Runs of its user that its estimate is based on, and its work done then."""
    service_gpu_s: float = 0.0
    """Attained service: GPU seconds held."""
    placed: Assignment | None = None
    """GPUs that it holds; None: it waits."""
    last: Assignment | None = None
    """GPUs that it held last; None: it never ran."""
    target: Assignment | None = None
    """GPUs to which it moves while it waits to run again; None: it is on no move."""
    alone: float = 1.0
    """Slowdown on its GPUs without interference."""
    slowdown: float = 1.0
    run_s: float = 0.0
    """Time on GPUs so far."""
    start_s: float = math.nan
    """First start; NaN: it never started."""
    end_s: float = math.nan
    killed: bool = False
    """It ended at its time limit, with work left."""
    preemptions: int = 0
    migrations: int = 0
    size: int = 0
    """GPUs that it holds, or asks for while it waits."""
    clock_mhz: int | None = None
    """SM clock of its GPUs; None: the default clock."""
    power_limit_w: int | None = None
    """Power limit of each of its GPUs; None: the site's own."""
    stretch: float = 1.0
    """Time at its present size and clock / time at the size of the trace and the default clock."""
    least_stretch: float = 1.0
    """The same at the size that it asks for, its least one."""
    energy_j: float = 0.0
    """Energy of its GPUs up to ``metered_s``."""
    above_idle_w: float = 0.0
    """Power that its GPUs draw beyond that of idle ones while it makes progress."""
    metered_s: float = 0.0
    moved_s: float | None = None
    """When it last moved (``SimSettings.moves``); None: never."""
    placed_s: float = math.nan
    """When it got its current GPUs; NaN: it waits."""
    limit_end_s: float = math.inf
    """Time at which it is killed if it still has its current GPUs."""
    since_s: float = 0.0
    """Time up to which progress is credited."""
    resume_s: float = 0.0
    """Time from which it progresses (later than ``since_s`` after a migration)."""
    version: int = 0
    """Changes with the time of its end."""
    holder: RunningJob | None = None
    """Cache of :meth:`as_holder`."""

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


_UNNAMED = "(none)"
"""Account or user of a job that has none."""


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
