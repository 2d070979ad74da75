"""Active job: a job between its arrival and its end, with its GPUs, progress and queue order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.order import id_key
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob

__all__ = ["ActiveJob", "Key", "order_key"]

_SLACK_GPU_S = 1e-3
"""Tolerance of the threshold: attained service is a sum of many rounded steps."""


@dataclass(slots=True)
class ActiveJob:
    """A job that waits or runs. Times in seconds of the trace."""

    position: int
    """Index in the trace."""
    job: TraceJob
    request: Request
    done_s: float = 0.0
    """Work done so far, in seconds at slowdown 1."""
    service_gpu_s: float = 0.0
    """Attained service: GPU seconds held."""
    placed: Assignment | None = None
    """GPUs that it holds; None: it waits."""
    last: Assignment | None = None
    """GPUs that it held last; None: it never ran."""
    alone: float = 1.0
    """Slowdown on its GPUs without interference."""
    slowdown: float = 1.0
    run_s: float = 0.0
    """Time on GPUs so far."""
    start_s: float = math.nan
    """First start; NaN: it never started."""
    end_s: float = math.nan
    preemptions: int = 0
    migrations: int = 0
    placed_s: float = 0.0
    """Time at which it got its current GPUs."""
    since_s: float = 0.0
    """Time up to which progress is credited."""
    resume_s: float = 0.0
    """Time from which it progresses (later than ``since_s`` after a migration)."""
    version: int = 0
    """Version of its entry among the ends; older entries are void."""
    holder: RunningJob | None = None
    """Cache of :meth:`as_holder`."""
    turn: tuple[tuple[int, ...], str] = field(init=False)
    """Breaks ties in the queue as the planner does."""

    def __post_init__(self) -> None:
        self.turn = id_key(self.job.job_id)

    def where(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(node, slots) that it holds; empty while it waits."""
        if self.placed is not None:
            yield from zip(self.placed.nodes, self.placed.slots, strict=True)

    def is_at(self, assignment: Assignment) -> bool:
        """Whether it runs on exactly these GPUs."""
        return self.placed is not None and _same(self.placed, assignment)

    def was_at(self, assignment: Assignment) -> bool:
        """Whether it ran on exactly these GPUs last."""
        return self.last is not None and _same(self.last, assignment)

    def credit(self, now: float) -> None:
        """Credit the progress made since the last credit."""
        held = now - self.since_s
        self.run_s += held
        self.service_gpu_s += held * self.job.gpus
        if now > self.resume_s:
            self.done_s += (now - self.resume_s) / self.slowdown
            self.resume_s = now
        self.since_s = now

    def end_at_pace(self, slowdown: float, now: float) -> float:
        """Continue at another slowdown from ``now``; return the time at which its work is done."""
        self.credit(now)
        self.slowdown = slowdown
        self.version += 1
        left = max(self.job.duration_s - self.done_s, 0.0)
        return max(self.resume_s, now) + left * slowdown

    def as_holder(self) -> RunningJob:
        """The running job as the planner sees it."""
        if self.holder is None:
            self.holder = RunningJob(
                job_id=self.job.job_id,
                gpus=tuple(self.where()),
                end_s=self.placed_s + self.request.time_limit_s,
                app_class=self.job.app_class,
                application=self.job.model,
            )
        return self.holder


def _same(one: Assignment, other: Assignment) -> bool:
    return (one.nodes, one.slots) == (other.nodes, other.slots)


Key = Callable[[ActiveJob], tuple[float, ...]]


def order_key(settings: SimSettings) -> Key:
    """A sort key, smallest first; submission breaks ties, then the job's number (``Rounds``).

    LAS has two queues (Gu et al., Tiresias, NSDI'19, section 3.2): jobs below the threshold of
    attained service, then jobs above it. Each is ordered by submission, so that jobs of similar
    service do not alternate.
    """
    limit = settings.las_threshold_gpu_s - _SLACK_GPU_S
    keys: dict[str, Callable[[ActiveJob], float]] = {
        "las": lambda active: float(active.service_gpu_s >= limit),
        "srtf": lambda active: active.job.duration_s - active.done_s,
        "priority": lambda active: -active.job.priority,
        "edf": lambda active: math.inf if active.job.deadline_s is None else active.job.deadline_s,
    }
    first = keys.get(settings.order)
    if first is None:
        return lambda active: (active.job.submit_s,)
    return lambda active: (first(active), active.job.submit_s)
