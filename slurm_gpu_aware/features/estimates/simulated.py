"""Run times as the simulated selector knows them, from the runs that have ended so far."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.energy.stage import clock_factor
from slurm_gpu_aware.features.estimates.history import JobKind, RunHistory, expected_end_s
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

_LEAST_S = 1.0  # remaining work of a job that has outlived its estimate


def estimate_of(settings: SimSettings, trace: Trace) -> str:
    """The kind of estimates of a run: a key of ``settings.ESTIMATES``."""
    users = any(job.user for job in trace.jobs)
    return settings.estimate or ("history" if users else "limit")


class Estimates:
    """Estimates of waiting jobs and expected ends of running ones.

    A placement is assumed to have the slowdown that the planner predicted for it, as live.
    """

    def __init__(
        self, kind: str = "limit", settings: SimSettings | None = None, *, dated: bool = False
    ) -> None:
        """``dated``: jobs have due dates, which rest on the runs so far whatever the ``kind``."""
        self.kind = kind
        self.error = 0.0 if settings is None else settings.estimate_error
        self.history = RunHistory()
        self._kept = dated or kind == "history"

    def refresh(self, active: ActiveJob) -> None:
        """Renew estimate and due date in the request of a waiting job."""
        if active.request.get(DUE_DATE) is not None:
            active.request = self.dated(active, active.request, active.done_s)
        if self.kind == "exact":
            left = self._work_s(active) - active.done_s
        elif self.kind == "history":
            known = (self.history.runs_of(active.job.user or ""), active.done_s)
            if active.estimated_at == known:
                return
            active.estimated_at = known
            left = self.history.estimate(_kind(active), active.done_s).seconds - active.done_s
        else:
            return
        left = max(left * active.least_stretch, _LEAST_S)
        if left != active.request.estimate_s:
            active.request = replace(active.request, estimate_s=left)

    def _work_s(self, active: ActiveJob) -> float:
        """The work of a job, as far off as it is in each run with this error."""
        return active.job.duration_s * _factor(active.position, self.error)

    def dated(self, active: ActiveJob, request: Request, done_s: float) -> Request:
        """A request with the earlier runs of its job, and its work done: s at slowdown 1."""
        job, due, table = active.job, request.get(DUE_DATE), request.get(TABLE)
        row = None if table is None else table.row(job.gpus)
        if due is None or table is None or row is None:
            return request
        kind = _kind(active)
        done = done_s / float(table.time_s[row, table.column(None)])
        known = replace(due, runs=self.history.runs(kind.user, kind.name), done=max(done, 0.0))
        return request if known == due else request.put(DUE_DATE, known)

    def holder(self, active: ActiveJob, now: float) -> RunningJob:
        """A running job as the planner sees it. Its expected end holds until it has passed."""
        holder = active.as_holder()
        if self.kind == "limit" or (holder.expected_end_s or -1.0) >= now:
            return holder
        if self.kind == "exact":
            end_s = active.resume_s + (self._work_s(active) - active.done_s) * active.slowdown
            end_s = min(max(end_s, now), active.limit_end_s)
        else:
            slowdown, kind = _slowdown(active), _kind(active)
            started = active.placed_s - active.done_before_s * slowdown
            if active.job.table is not None:  # its pace changes with its clock
                active.credit(now)
                started = now - active.done_s * slowdown
            end_s = expected_end_s(self.history, kind, slowdown, started, active.limit_end_s, now)
        active.holder = replace(holder, expected_end_s=end_s)
        return active.holder

    def ends(self, active: ActiveJob, now: float) -> None:
        """Add the run of a job that ends now, while it still holds its GPUs."""
        if self._kept:
            work = active.done_before_s + (now - active.placed_s) / _slowdown(active)
            if active.job.table is not None:
                active.credit(now)
                work = active.done_s
            cut_off = active.job.timed_out or now >= active.limit_end_s
            self.history.add(_kind(active), work, cut_off=cut_off)

    def background_ends(self, job: TraceJob) -> None:
        """Add the run of a background job that ends now; its slowdown is not known."""
        if self._kept and job.recorded_run_s is not None:
            kind = _kind_of(job, job.time_limit_s)
            self.history.add(kind, job.recorded_run_s, cut_off=job.timed_out)


@lru_cache(maxsize=1 << 17)
def _factor(position: int, error: float) -> float:
    return math.exp(np.random.default_rng(position).normal(0.0, error)) if error else 1.0


def _kind(active: ActiveJob) -> JobKind:
    return _kind_of(active.job, active.request.time_limit_s)


def _kind_of(job: TraceJob, time_limit_s: float) -> JobKind:
    name = job.name or job.model or ""
    return JobKind(job.user or "", name, job.account or "", job.gpus, time_limit_s)


def _slowdown(active: ActiveJob) -> float:
    """Predicted slowdown of its placement, at its size and clock."""
    if active.placed is None:
        return 1.0
    return active.placed.slowdown / clock_factor(active.placed.why) * active.stretch
