"""Rounds that size all jobs anew, waiting and running, as published elastic schedulers do.

A running job whose number of GPUs stays keeps its GPUs, at another clock if so decided; one whose
number changes restarts. Jobs are placed largest first, which fits powers of two on nodes of a power
of two (buddy allocation). If the GPUs that the others keep do not leave whole nodes, all jobs are
placed anew. With the stochastic scheduler the others keep theirs, and the jobs go to the nodes that
it has chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.features.power.allocation import Sized, SizingJob
from slurm_gpu_aware.features.power.powerflow import allocate
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.planning.stages import Round, Stage, plan_stages
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.rounds import Outcome, Rounds
from slurm_gpu_aware.simulator.settings import STS, PowerSettings, SimSettings
from slurm_gpu_aware.simulator.sts_sizes import sts_sizes
from slurm_gpu_aware.sizing.afs import afs


class ElasticRounds(Rounds):
    """Rounds of ``SimSettings.anew``."""

    def __init__(
        self,
        settings: SimSettings,
        power: PowerSettings,
        state: ClusterState,
        stages: Sequence[Stage] = FEATURES,
    ) -> None:
        super().__init__(settings, state, stages=stages)
        self.power = power
        self.placing = replace(self.plan_settings, classes=(), backfill=True)
        """Jobs are placed in the order of the list, and one without a place holds up no other."""
        self.nodes: Mapping[str, int] = {}
        """Job -> node of its GPUs by the stochastic scheduler."""

    def next(self) -> Outcome | None:
        """Size all jobs and place those that start or change; None if there is no job."""
        jobs = [*self.state.running.values(), *self.waiting.values()]
        if not jobs:
            return None
        jobs.sort(key=self._place)
        for active in jobs:
            if active.placed is not None:
                active.credit(self.state.clock.now)
            self.state.estimates.refresh(active)
        sized, wake_s = self._sized(jobs)
        stay = {
            active.position
            for active in self.state.running.values()
            if sized[active.job.job_id].gpus == active.size
        }
        served = [active for active in jobs if sized[active.job.job_id].gpus]
        served.sort(key=lambda active: -sized[active.job.job_id].gpus)  # stable
        queue = [active for active in served if active.position not in stay]
        plan = self._placed(queue, sized, stay)
        if plan.waiting and self.nodes:
            plan = self._placed(queue, sized, stay, chosen=True)
        elif plan.waiting and stay:
            queue, stay = served, set()
            plan = self._placed(queue, sized, stay)
        clocks = {active.position: sized[active.job.job_id].clock_mhz for active in served}
        return Outcome(replace(plan, wake_s=wake_s), stay, queue, clocks)

    def _sized(self, jobs: list[ActiveJob]) -> tuple[Mapping[str, Sized], float]:
        """What each job gets, and when to ask again; inf: at the next arrival or end."""
        if self.settings.sizing in STS:
            keeps = self.settings.sizing == "sts"
            found = sts_sizes(jobs, self.state, self.power.max_w, keeps=keeps)
            self.nodes = found.nodes
            return found.sized, found.wake_s
        return self._shared_out(jobs), math.inf

    def _shared_out(self, jobs: list[ActiveJob]) -> Mapping[str, Sized]:
        gpus = self.state.total - self.state.background_gpus
        wanted = [self._sizing_job(active) for active in jobs]
        limit_w, idle_w = self.power.limit_w(gpus), self.power.idle_w
        if self.settings.sizing == "afs":
            return afs(wanted, gpus, limit_w, idle_w=idle_w).jobs
        width = self.state.idle.shape[1]
        found = allocate(
            wanted, gpus, limit_w, idle_w=idle_w, gpus_per_node=width, whole_nodes=True
        )
        return found.jobs

    def _sizing_job(self, active: ActiveJob) -> SizingJob:
        request = active.request
        fixed = active.placed is not None and not active.job.elastic
        sizes = (active.size,) if fixed else request.sizes or (request.gpus,)
        return SizingJob(
            request.job_id,
            sizes,
            sizes[0] * self.power.max_w,
            request.table,
            work=self._work(active),
            must_run=fixed,
        )

    def _work(self, active: ActiveJob) -> float:
        """Iterations that are left, for AFS; PowerFlow counts gains as shares of a job's time."""
        request, table = active.request, active.request.table
        row = None if table is None else table.row(request.gpus)
        if table is None or row is None:
            return 1.0
        known = self.settings.sizing == "afs" and self.state.estimates.kind != "limit"
        seconds = request.expected_s if known else 1.0
        return seconds / float(table.time_s[row, table.column(None)])

    def _placed(
        self,
        queue: list[ActiveJob],
        sized: Mapping[str, Sized],
        keep: set[int],
        *,
        chosen: bool = False,
    ) -> Plan:
        """The plan of a queue beside the jobs that keep their GPUs, with sizes and clocks.

        ``chosen``: jobs go to the nodes of ``nodes``.
        """
        if not queue:
            return Plan((), ())
        requests: list[Request] = []
        for place, active in enumerate(queue):
            request = active.request.resized(sized[active.job.job_id].gpus)
            if (node := self.nodes.get(active.job.job_id)) is not None:
                only = np.arange(len(self.state.idle.nodes)) == node if chosen else None
                request = replace(request, max_nodes=1, eligible=only)
            bare = replace(request, sizes=(), table=None, due=None, priority=float(-place))
            requests.append(bare)
        shown, now = self.state.view(keep, with_holders=False), self.state.clock.now
        one = Round(requests, shown, self.placing, now, self.options, explain=False)
        plan = plan_stages(one, self.stages)
        assignments = (replace(a, clock_mhz=sized[a.job_id].clock_mhz) for a in plan.assignments)
        return replace(plan, assignments=tuple(assignments))
