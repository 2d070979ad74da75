"""Due dates of the jobs of a trace; those of one that has none are drawn as in STS's evaluation."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.due_dates.declared import EPOCHS, DueDatesConfig
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.features.estimates.history import RunHistory
from slurm_gpu_aware.features.estimates.simulated import SimulatedEstimates, kind_of
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.columns import Column
from slurm_gpu_aware.simulator.result import Mask, Result
from slurm_gpu_aware.simulator.settings import RunSection, SimSettings
from slurm_gpu_aware.simulator.simulated_feature import Asked, SimulatedFeature
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.time_text import duration

_ROUNDING_S = 1e-3  # Lateness that is rounding.
_DUE, _NO_DUE = "due_jobs", ":no-due"
_NUMBER = r"([0-9]{1,6}(?:\.[0-9]{1,6})?)"


def parse_factors(text: str) -> tuple[float, float]:
    """Least and greatest factor of ``1-3``. Raises RequestError."""
    match = re.fullmatch(f"{_NUMBER}-{_NUMBER}", text)
    if match is None or not 0.0 < float(match[1]) <= float(match[2]):
        raise RequestError(f"--due {quoted(text)}: expected LOW-HIGH above 0, such as 1-3")
    return float(match[1]), float(match[2])


def due_numbers(result: Result) -> Mapping[str, Any]:
    """Jobs with due dates, the share in time, lateness; empty without such jobs.

    ``avg_late_s`` is the mean lateness of those that ended (in time: 0), ``late_h`` its sum. A job
    that did not end is not in time; how late it would be is not known.
    """
    due_s = result.of_trace("deadline_s")
    dated = np.isfinite(due_s)
    if not dated.any():
        return {}
    late_s = np.maximum(result.end_s - due_s, 0.0)
    late_s[late_s <= _ROUNDING_S] = 0.0
    ended = dated & result.done
    in_time = ended & (late_s == 0)
    return {
        _DUE: int(dated.sum()),
        "due_met": float(in_time.sum() / dated.sum()),
        "avg_late_s": float(late_s[ended].mean()) if ended.any() else None,
        "late_h": float(late_s[ended].sum() / 3600.0),
    }


def _number(result: Result, among: Mask | None, key: str) -> Any:
    return due_numbers(result).get(key)


@dataclass(frozen=True)
class RunDueDates(RunSection):
    """Whether due dates play a part in a run."""

    count: bool = True
    """Jobs are sized by them, as live; False: they are only reported."""

    @property
    def words(self) -> str:
        """``:no-due``."""
        return "" if self.count else _NO_DUE

    @classmethod
    def read(cls, text: str, base: SimSettings) -> tuple[str, SimSettings]:
        """``NAME:no-due``."""
        named = text.removesuffix(_NO_DUE)
        return named, base if named == text else base.put(cls(count=False))


RUN = RunDueDates


class SimulatedDueDates(SimulatedFeature):
    """Due dates of moldable jobs, and the earlier runs on which they rest."""

    columns = (
        Column(_DUE, _number),
        Column("due_met", _number, "due dates met", "due met", "{:.1%}", _DUE),
        Column("avg_late_s", _number, "", "avg late", duration, _DUE),
        Column("late_h", _number, "late in all, h", form="{:.1f}", needs=_DUE),
    )

    def prepare(self) -> None:
        """Jobs may have due dates, and pass others by them."""
        dated = any(job.deadline_s is not None for job in self.trace.jobs)
        self.count = self.settings.of(RunDueDates).count
        self.keeps = dated and self.count
        self.passes = self.settings.of(DueDatesConfig).order != DueDatesConfig.order

    def asked(self, job: TraceJob, request: Request) -> Request:
        """With its due date."""
        if job.deadline_s is None or not self.count or not request.sizes:
            return request
        work = job.hints.get(EPOCHS)
        epochs = None if work is None else (work[0], job.gpus, float(work[1]))
        grows = self.settings.mode == "moves" and job.elastic
        restart_s = self.settings.restart_s(job) if grows else None
        due = DueDate(job.deadline_s, epochs=epochs, weight=job.weight, restart_s=restart_s)
        return request.put(DUE_DATE, due)

    def renew(self, queue: Sequence[ActiveJob]) -> None:
        """With their earlier runs, and their work done."""
        for active in queue if self.keeps else ():
            active.request = self._known(active, active.request, active.done_s)

    def as_waiting(self, active: ActiveJob, request: Request) -> Request:
        """With the work done before it got its GPUs, less that of its restart."""
        if request.get(DUE_DATE) is None or active.placed is None:
            return request
        restart_s = 0.0 if active.last is None else self.settings.restart_s(active.job)
        done_s = active.done_before_s - restart_s / (active.placed.slowdown * active.stretch)
        return self._known(active, request, done_s)

    @cached_property
    def _history(self) -> RunHistory:
        """The runs that have ended so far."""
        there = (one for one in self.state.features if isinstance(one, SimulatedEstimates))
        return next((one.history for one in there), RunHistory())

    def _known(self, active: ActiveJob, request: Request, done_s: float) -> Request:
        """The request with earlier runs; ``done_s``: work done, s at slowdown 1."""
        job, due, table = active.job, request.get(DUE_DATE), request.get(TABLE)
        row = None if table is None else table.row(job.gpus)
        if due is None or table is None or row is None:
            return request
        kind = kind_of(active)
        done = done_s / float(table.time_s[row, table.column(None)])
        known = replace(due, runs=self._history.runs(kind.user, kind.name), done=max(done, 0.0))
        return request if known == due else request.put(DUE_DATE, known)

    def sees_running(self, asked: Asked) -> bool:
        """While a job with a due date waits."""
        return self.keeps and any(one.request.get(DUE_DATE) is not None for one in asked.queue)


SIMULATED = SimulatedDueDates


def with_due_dates(trace: Trace, factors: tuple[float, float], seed: int) -> Trace:
    """The trace; each job without a due date is due some multiple of its fastest run after its
    submission. The multiple is uniform between ``factors`` (Filippini et al., section VI: 1 to 3).
    """
    drawn = np.random.default_rng(seed).uniform(*factors, len(trace.jobs)).tolist()
    jobs = list(trace.jobs)
    for i, (job, factor) in enumerate(zip(trace.jobs, drawn, strict=True)):
        if job.deadline_s is None:
            due_s = min(job.submit_s + factor * _fastest_s(job), MAX_TIME_S)
            jobs[i] = replace(job, deadline_s=due_s)
    return replace(trace, jobs=tuple(jobs))


def _fastest_s(job: TraceJob) -> float:
    """Run time at the best of its sizes, on GPUs without a slowdown."""
    table = job.table
    own = None if table is None else table.row(job.gpus)
    if table is None or own is None:
        return job.duration_s
    column = table.column(None)
    rows = [row for size in (job.gpus, *job.sizes) if (row := table.row(size)) is not None]
    return job.duration_s * float(table.time_s[rows, column].min() / table.time_s[own, column])
