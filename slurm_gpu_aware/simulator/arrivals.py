"""Requests of the jobs of a trace as they arrive."""

import math

from slurm_gpu_aware.features.due_dates.simulated import due_facet
from slurm_gpu_aware.features.energy.hints import SLOWER
from slurm_gpu_aware.features.moves.simulated import Mover
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.job_hints import HINTED, JobHints
from slurm_gpu_aware.model.request import PolicyChoice, Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.placement.policy import Policy, option_names
from slurm_gpu_aware.planning.dispatcher import shape_of
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.settings import LIMIT_FACTOR, LIMIT_MARGIN, SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob


class Arrivals:
    """Makes the request of each job, and says whether it can ever start."""

    def __init__(
        self,
        settings: SimSettings,
        policy: Policy,
        state: ClusterState,
        mover: Mover | None,
        *,
        profiled: bool,
    ) -> None:
        """``profiled``: the policy considers the neighbours of jobs."""
        self._settings, self._policy, self._mover = settings, policy, mover
        self._idle, self._physics, self._profiled = state.idle, state.physics, profiled
        self._options = option_names(settings.policy)
        self._fitting: dict[object, bool] = {}
        self._worst: dict[object, float] = {}
        """What ``Physics.worst`` depends on -> its value."""

    def fits(self, request: Request) -> bool:
        """Whether the policy can place the request on the idle cluster."""
        request = self._policy.relaxed(request)
        key = shape_of(request)
        if key not in self._fitting:
            self._fitting[key] = self._policy.place(request, self._idle) is not None
        return self._fitting[key]

    def request(self, job: TraceJob) -> Request:
        """The request of a job."""
        sizes = () if self._settings.sizing in ("as-asked", "zeus") else job.sizes
        power = self._settings.power
        table = None if power is None else power.known.get(job.model or "", job.table)
        restart_s = None if self._mover is None else self._mover.restart_s(job)
        dated, known = sizes and self._settings.due_dates, self._options
        return Request(
            job_id=job.job_id,
            user=job.user or "",
            gpus=sizes[0] if sizes else job.gpus,
            min_nodes=job.nodes or 1,
            max_nodes=job.nodes,
            sizes=sizes,
            app_class=job.app_class,
            bandwidth_sensitive=job.bandwidth_sensitive,
            pattern=job.pattern,
            time_limit_s=self._limit_s(job),
            submit_s=job.submit_s,
            application=job.model if self._profiled else None,
            policy=PolicyChoice(None, {k: v for k, v in job.options.items() if k in known}),
            facets=named(TABLE, table)
            | named(HINTED, self._hints(job))
            | (due_facet(job, restart_s) if dated else {}),
        )

    def _hints(self, job: TraceJob) -> JobHints:
        """What the job says for stages; at default clocks none has a bound of its own, either."""
        if self._settings.slowdown != 0.0:
            return job.hints
        return JobHints({k: v for k, v in job.hints.values.items() if k != SLOWER.key})

    def _limit_s(self, job: TraceJob) -> float:
        """Time limit of a job in seconds; inf: none."""
        limit = job.time_limit_s
        if job.timed_out:
            return max(limit, job.recorded_run_s or 0.0)
        given = math.isfinite(limit) or job.recorded_run_s is not None
        if given and self._settings.overrun == "kill":
            return limit
        share = self._physics.share(job) if job.bandwidth_sensitive else 0.0
        key = (job.app_class, job.gpus, job.pattern, share)
        if key not in self._worst:
            self._worst[key] = self._physics.worst(job)
        longest = LIMIT_MARGIN * self._worst[key] * self._physics.longest(job)
        return max(longest, limit if given else LIMIT_FACTOR * job.duration_s)
