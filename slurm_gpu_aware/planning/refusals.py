"""Refusals: free GPUs that a job leaves to others because it waits by choice for better ones.

Its wait rests on the expected ends of running jobs, and so on what their users say and did before:
limits, names, short runs. A user could let another one's job wait for GPUs that do not come, and
start on what it leaves. So behind a job of another user and a higher priority that waits for GPUs
of theirs, jobs of a user leave it a set on which it could start, or end before it is expected to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import NamedTuple

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.timeline import take


class _Refusal(NamedTuple):
    request: Request
    start_s: float
    """Its expected start."""
    users: Collection[str]
    """Those for whose jobs it waits."""


class Refusals:
    """The refusals of one round, in the order of its queue."""

    def __init__(self, dispatcher: Dispatcher, running: Iterable[RunningJob]) -> None:
        """``running``: the jobs of the snapshot."""
        self._dispatcher, self._running = dispatcher, running
        self._holders: dict[Gpu, RunningJob] = {}
        self._known: list[_Refusal] = []

    def add(
        self,
        request: Request,
        wait: Postponement,
        gpus: Set[Gpu],
        started: Iterable[RunningJob],
    ) -> None:
        """Note the wait of a job for some GPUs; ``started``: those that the round has started."""
        if not self._holders:
            self._holders = {gpu: job for job in self._running for gpu in job.each_gpu}
        holders = [self._holders[gpu] for gpu in gpus if gpu in self._holders]
        holders += (job for job in started if not gpus.isdisjoint(job.each_gpu))
        # An end by its time limit comes for sure.
        users = {job.user for job in holders if job.user and wait.start_s < job.end_s}
        if users := users - {request.user}:
            self._known.append(_Refusal(request, wait.start_s, users))

    def why_not(self, request: Request, answer: object, cluster: Cluster) -> str | None:
        """Why a job does not start with its assignment on a cluster; None: it may."""
        if not isinstance(answer, Assignment):
            return None
        for first, start_s, users in self._known:
            if request.user not in users or not request.is_behind(first):
                continue
            if self._dispatcher.now + request.time_limit_s <= start_s:
                continue
            after = cluster.copy()
            take(after, request, answer)
            if self._could_start(first, cluster) and not self._could_start(first, after):
                job = f"job {first.job_id}, which waits for GPUs of another job of the same user"
                return f"waits for its turn behind {job}"
        return None

    def beside(self, cluster: Cluster) -> Cluster:
        """The cluster without a set for each job, on which it could start now."""
        after = cluster.copy() if self._known else cluster
        for first, *_ in self._known:
            if (found := self._dispatcher.could_place(first, after)) is not None:
                take(after, first, found)
        return after

    def _could_start(self, request: Request, cluster: Cluster) -> bool:
        return self._dispatcher.could_place(request, cluster) is not None
