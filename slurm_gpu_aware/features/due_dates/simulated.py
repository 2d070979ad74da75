"""Due dates of the jobs of a trace; those of one that has none are drawn as in STS's evaluation."""

import re
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.features.due_dates.hints import EPOCHS
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

_NUMBER = r"([0-9]{1,6}(?:\.[0-9]{1,6})?)"


def parse_factors(text: str) -> tuple[float, float]:
    """Least and greatest factor of ``1-3``. Raises RequestError."""
    match = re.fullmatch(f"{_NUMBER}-{_NUMBER}", text)
    if match is None or not 0.0 < float(match[1]) <= float(match[2]):
        raise RequestError(f"--due {quoted(text)}: expected LOW-HIGH above 0, such as 1-3")
    return float(match[1]), float(match[2])


def due_facet(job: TraceJob, restart_s: float | None) -> dict[str, Any]:
    """The due date of a job, as a facet of its request. ``restart_s``: as of `DueDate`."""
    if job.deadline_s is None:
        return {}
    work = job.hints.get(EPOCHS)
    epochs = None if work is None else (work[0], job.gpus, float(work[1]))
    due = DueDate(job.deadline_s, epochs=epochs, weight=job.weight, restart_s=restart_s)
    return named(DUE_DATE, due)


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
