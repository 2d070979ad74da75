"""Estimates of a round: run times of parked jobs, expected ends of running ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.estimates.history import Estimate, JobKind, expected_end_s
from slurm_gpu_aware.features.estimates.reader import RunReader
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob


class Estimates:
    """What the rounds know of run times."""

    def __init__(self, config: Config) -> None:
        self.reader = RunReader(config)
        self._ends: dict[tuple[str, float], float] = {}
        """Job and start -> expected end, which holds until it has passed."""

    def renew(self) -> None:
        """Take in what was read since the last round."""
        if self.reader.renew():
            self._ends.clear()

    def of(self, job: SlurmJob, request: Request) -> Estimate | None:
        """The estimate of a parked job; None: there is no history at all."""
        if not len(self.reader.history):
            return None
        return self.reader.history.estimate(_kind(job, request.gpus, request.time_limit_s))

    def runs(self, job: SlurmJob) -> tuple[tuple[int, float], ...]:
        """(GPUs, work) of the last runs of the job's user and name."""
        return self.reader.history.runs(job.user, job.name) if job.user and job.name else ()

    def with_ends(self, cluster: Cluster, jobs: Sequence[SlurmJob], now: float) -> Cluster:
        """The cluster with the expected ends of its running jobs."""
        if not len(self.reader.history):
            return cluster
        records = {job.id: job for job in jobs}
        ends: dict[tuple[str, float], float] = {}
        running = tuple(
            self._with_end(one, records.get(one.job_id), cluster, now, ends)
            for one in cluster.running
        )
        self._ends = ends
        return replace(cluster, running=running)

    def _with_end(
        self,
        one: RunningJob,
        job: SlurmJob | None,
        cluster: Cluster,
        now: float,
        ends: dict[tuple[str, float], float],
    ) -> RunningJob:
        if job is None or not one.gpus or any(share.shards for share in job.shares):
            return one
        started = job.state in HOLDING and job.start_s is not None
        start = job.start_s if started and job.start_s is not None else now  # it starts just now
        end = self._ends.get((one.job_id, start))
        if end is None or end < now:
            shares = sum(len(share.gpus) for share in job.shares)
            gpus = shares or sum(len(slots) for _, slots in one.gpus)
            nodes, slots = zip(*one.gpus, strict=True)
            _, _, slowdown = predicted_slowdown(cluster, one.app_class or "", nodes, slots)
            kind = _kind(job, gpus, job.time_limit_s)
            end = expected_end_s(self.reader.history, kind, slowdown, start, one.end_s, now)
        if started:
            ends[one.job_id, start] = end
        return replace(one, expected_end_s=end)


def _kind(job: SlurmJob, gpus: int, time_limit_s: float) -> JobKind:
    return JobKind(job.user, job.name, job.account or "", gpus, time_limit_s)
