"""Run times as the simulated selector knows them, from the runs that have ended so far."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.features.energy.stage import clock_factor
from slurm_gpu_aware.features.estimates.history import JobKind, RunHistory, expected_end_s
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.facets import Section
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.simulated_feature import SimulatedFeature
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

_LEAST_S = 1.0  # remaining work of a job that has outlived its estimate


ESTIMATES: Mapping[str, str] = {
    "history": "from the runs that have ended so far, as live",
    "limit": "the time limit",
    "exact": "the work itself, which no selector knows; for research",
}
"""What the planner knows of run times."""


@dataclass(frozen=True)
class RunEstimates(Section):
    """The estimates of a run."""

    kind: str | None = None
    """A key of `ESTIMATES`; None: history for a trace with users, else limit."""
    error: float = 0.0  # Of ``exact``: standard deviation of ln(estimate / work).

    def __post_init__(self) -> None:
        if self.kind not in (None, *ESTIMATES):
            raise PolicyError(f"unknown estimate {self.kind!r}; known: {', '.join(ESTIMATES)}")


def estimate_of(settings: SimSettings, trace: Trace) -> str:
    """The kind of estimates of a run: a key of `ESTIMATES`."""
    users = any(job.user for job in trace.jobs)
    return settings.of(RunEstimates).kind or ("history" if users else "limit")


class SimulatedEstimates(SimulatedFeature):
    """Estimates of waiting jobs and expected ends of running ones, by the runs that have ended.

    A placement is assumed to have the slowdown that the planner predicted for it, as live.
    """

    def prepare(self) -> None:
        """No run has ended."""
        self.history = RunHistory()
        self.kind = estimate_of(self.settings, self.trace)
        self._error = self.settings.of(RunEstimates).error

    def ends(self, active: ActiveJob) -> None:
        """Add its run."""
        now = self.state.clock.now
        work = active.done_before_s + (now - active.placed_s) / _slowdown(active)
        if active.job.table is not None:
            active.credit(now)
            work = active.done_s
        cut_off = active.job.timed_out or now >= active.limit_end_s
        self.history.add(kind_of(active), work, cut_off=cut_off)

    def background_ends(self, job: TraceJob) -> None:
        """Add its run; its slowdown is not known."""
        if job.recorded_run_s is not None:
            kind = _kind(job, job.time_limit_s)
            self.history.add(kind, job.recorded_run_s, cut_off=job.timed_out)

    def renew(self, queue: Sequence[ActiveJob]) -> None:
        """Renew their estimates."""
        for active in queue if self.kind != "limit" else ():
            self._renew(active)

    def _renew(self, active: ActiveJob) -> None:
        if self.kind == "exact":
            left = self._work_s(active) - active.done_s
        else:
            known = (self.history.runs_of(active.job.user or ""), active.done_s)
            if active.estimated_at == known:
                return
            active.estimated_at = known
            left = self.history.estimate(kind_of(active), active.done_s).seconds - active.done_s
        left = max(left * active.least_stretch, _LEAST_S)
        if left != active.request.estimate_s:
            active.request = replace(active.request, estimate_s=left)

    def _work_s(self, active: ActiveJob) -> float:
        """The work of a job, as far off as it is in each run with this error."""
        return active.job.duration_s * _factor(active.position, self._error)

    def shown(self, active: ActiveJob, job: RunningJob) -> RunningJob:
        """With its expected end, which holds until it has passed."""
        now = self.state.clock.now
        if self.kind == "limit" or (job.expected_end_s or -1.0) >= now:
            return job
        if self.kind == "exact":
            end_s = active.resume_s + (self._work_s(active) - active.done_s) * active.slowdown
            end_s = min(max(end_s, now), active.limit_end_s)
        else:
            slowdown, kind = _slowdown(active), kind_of(active)
            started = active.placed_s - active.done_before_s * slowdown
            if active.job.table is not None:  # its pace changes with its clock
                active.credit(now)
                started = now - active.done_s * slowdown
            end_s = expected_end_s(self.history, kind, slowdown, started, active.limit_end_s, now)
        return replace(job, expected_end_s=end_s)


SIMULATED = SimulatedEstimates


@lru_cache(maxsize=1 << 17)
def _factor(position: int, error: float) -> float:
    return math.exp(np.random.default_rng(position).normal(0.0, error)) if error else 1.0


def kind_of(active: ActiveJob) -> JobKind:
    """What its earlier runs have in common with a job."""
    return _kind(active.job, active.request.time_limit_s)


def _kind(job: TraceJob, time_limit_s: float) -> JobKind:
    name = job.name or job.model or ""
    return JobKind(job.user or "", name, job.account or "", job.gpus, time_limit_s)


def _slowdown(active: ActiveJob) -> float:
    """Predicted slowdown of its placement, at its size and clock."""
    if active.placed is None:
        return 1.0
    return active.placed.slowdown / clock_factor(active.placed.why) * active.stretch
