"""Running jobs as the planner sees them, kept sorted from round to round."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import count, takewhile

import numpy as np

from slurm_gpu_aware.model.assignment import RunningJobs
from slurm_gpu_aware.model.cluster import RunningJob


class Holders:
    """Position in the trace -> running job, in the order in which they were first listed."""

    def __init__(self, shape: tuple[int, int]) -> None:
        """``shape``: of the cluster."""
        self._jobs: dict[int, RunningJob] = {}
        self._by_end: list[RunningJob] = []
        self._listed: dict[str, tuple[int, int]] = {}
        """Job id -> number in the order of listing, position in the trace."""
        self._numbers = count()
        self._until = np.full(shape, np.nan)

    def put(self, position: int, job: RunningJob) -> None:
        """List a job, or what is now known of it."""
        if (old := self._jobs.get(position)) is None:
            self._listed[job.job_id] = (next(self._numbers), position)
        else:
            del self._by_end[self._rank(old)]
        self._hold(job, job.end_s)
        self._jobs[position] = job
        insort(self._by_end, job, key=self._key)

    def discard(self, position: int) -> None:
        """Remove a job if it is listed."""
        if (job := self._jobs.pop(position, None)) is not None:
            del self._by_end[self._rank(job)]
            del self._listed[job.job_id]
            self._hold(job, math.nan)

    def overdue(self, now: float) -> list[int]:
        """Positions of the jobs with an expected end before ``now``."""
        late = takewhile(lambda job: job.until_s < now, self._by_end)
        return [self._listed[job.job_id][1] for job in late]

    def all(self) -> RunningJobs:
        """All jobs."""
        jobs = RunningJobs(self._jobs.values())
        jobs.by_end, jobs.beside_gpus = self._by_end.copy(), ()  # their CPUs are not known
        jobs.known_until = self._until.copy()
        return jobs

    def of(self, positions: Iterable[int]) -> tuple[RunningJob, ...]:
        """The jobs at these positions."""
        return tuple(self._jobs[position] for position in positions)

    def _hold(self, job: RunningJob, until_s: float) -> None:
        for node, slots in job.gpus:
            self._until[node, slots] = until_s

    def _key(self, job: RunningJob) -> tuple[float, int, int]:
        return job.until_s, *self._listed[job.job_id]

    def _rank(self, job: RunningJob) -> int:
        """Place of a job in ``_by_end``."""
        return bisect_left(self._by_end, self._key(job), key=self._key)
