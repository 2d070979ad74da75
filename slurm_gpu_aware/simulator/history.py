"""A stretch of a site's history: its jobs, and those that only hold GPUs in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from slurm_gpu_aware.simulator.trace import TraceJob

__all__ = ["BEFORE", "stretch"]

BEFORE = "started before the days that were asked for"


def stretch(
    ended: Sequence[TraceJob],
    running: Sequence[TraceJob],
    *,
    now: float | None = None,
    seconds: float | None = None,
) -> tuple[list[TraceJob], list[TraceJob], Counter[str]]:
    """The jobs of the last ``seconds``, those that hold GPUs, and how many were left out, and why.

    What had started before the stretch begins, and what still ran when it ends, is not played
    again: its start or its end lies outside. But it held GPUs, and does so in every run: from its
    recorded start to its recorded end, or to ``now``. A job that was waiting when the stretch
    begins arrives at its beginning.

    Parameters
    ----------
    ended, running : recorded jobs, times in Unix seconds; ``recorded_run_s`` of running ones is
        how long they have run.
    now : end of the stretch, Unix s; None: the latest time that was recorded.
    seconds : None: everything.

    Returns
    -------
    jobs, holders : times in seconds from the beginning of the stretch, or from the first
        submission if there is none.
    left_out : reason -> jobs that are in neither or only hold GPUs.
    """
    left_out: Counter[str] = Counter()
    latest = now
    if latest is None:
        latest = max((_start(job) + _run(job) for job in (*ended, *running)), default=0.0)
    holders = [replace(job, recorded_run_s=latest - _start(job)) for job in running]
    jobs = list(ended)
    begin = min((job.submit_s for job in ended), default=0.0)
    if seconds is not None:
        begin = latest - seconds
        jobs = [job for job in ended if _start(job) >= begin]
        holders += [job for job in ended if _start(job) < begin]
        left_out[BEFORE] += len(ended) - len(jobs)
        jobs = [replace(job, submit_s=max(job.submit_s, begin)) for job in jobs]
    moved = [[_moved(job, begin) for job in group] for group in (jobs, holders)]
    holders = [job for job in moved[1] if _run(job) > 0 and _start(job) + _run(job) > 0]
    return moved[0], holders, +left_out


def _start(job: TraceJob) -> float:
    return job.recorded_start_s or 0.0


def _run(job: TraceJob) -> float:
    return job.recorded_run_s or 0.0


def _moved(job: TraceJob, by: float) -> TraceJob:
    """The job with times that count from ``by``."""
    return replace(job, submit_s=job.submit_s - by, recorded_start_s=_start(job) - by)
