"""Rounds that size all jobs anew, waiting and running, as published elastic schedulers do.

A running job whose number of GPUs stays keeps its GPUs, at another clock if so decided; one whose
number changes restarts. Jobs are placed largest first, which fits powers of two on nodes of a power
of two (buddy allocation). If the GPUs that the others keep do not leave whole nodes, all jobs are
placed anew. With the stochastic scheduler the others keep theirs, and the jobs go to the nodes that
it has chosen.

By the stochastic scheduler (`due_dates.sts`) jobs with a due date, a size table and earlier runs
get what it decides, on one node each. All others get the GPUs that they ask for, after them; those
that no node has stand beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.features.baselines.afs_and_zeus import afs
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.due_dates.free_gpus import DueNode, Share
from slurm_gpu_aware.features.due_dates.plan import due_work
from slurm_gpu_aware.features.due_dates.sts import DueJob, decide
from slurm_gpu_aware.features.due_dates.together import LATE_COST, PERIOD_S, up_to
from slurm_gpu_aware.features.due_dates.work import empirical
from slurm_gpu_aware.features.power.menu import Sized, SizingJob
from slurm_gpu_aware.features.power.powerflow import allocate
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.features.sizes.speeds import Speeds
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.planning.stages import World, plan_stages, told
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.rounds import Outcome, Rounds

STS, STS_PREEMPT = "sts", "sts-preempt"
_LEAST_S = 1.0  # Growth that is due earlier waits so long.
_MODEL = "gpu"  # All GPUs of a simulation are of one model.


class ElasticRounds(Rounds):
    """Rounds of the modes that size all jobs anew."""

    def prepare(self) -> None:
        """No job has a node."""
        self.power = self.settings.of(RunPower)
        self.placing = replace(self.plan_settings, classes=(), backfill=True)
        """Jobs are placed in the order of the list, and one without a place holds up no other."""
        empty = {facet: facet.empty for stage in self.stages for facet in stage.inputs}
        self._world = World(self.settings.sections, empty)
        """Order, power and moves are decided before the planner's round."""
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
        for feature in self.features:
            feature.renew(jobs)
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
        if self.settings.mode in (STS, STS_PREEMPT):
            keeps = self.settings.mode == STS
            found = sts_sizes(jobs, self.state, self.power.max_w, keeps=keeps)
            self.nodes = found.nodes
            return found.sized, found.wake_s
        return self._shared_out(jobs), math.inf

    def _shared_out(self, jobs: list[ActiveJob]) -> Mapping[str, Sized]:
        gpus = self.state.total - self.state.background_gpus
        wanted = [self._sizing_job(active) for active in jobs]
        limit_w, idle_w = self.power.limit_w(gpus), self.power.idle_w
        if self.settings.mode == "afs":
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
            request.get(TABLE),
            work=self._work(active),
            must_run=fixed,
        )

    def _work(self, active: ActiveJob) -> float:
        """Iterations that are left, for AFS; PowerFlow counts gains as shares of a job's time."""
        request, table = active.request, active.request.get(TABLE)
        row = None if table is None else table.row(request.gpus)
        if table is None or row is None:
            return 1.0
        known = self.settings.mode == "afs" and request.estimate_s is not None
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
                request = replace(request.on_nodes(only), max_nodes=1)
            requests.append(replace(request, sizes=(), facets={}, priority=float(-place)))
        shown, now = self.state.view(keep, with_holders=False), self.state.clock.now
        one = Round(requests, shown, self.placing, now, self.options, explain=False)
        plan = plan_stages(told(one, self.stages, self._world), self.stages)
        assignments = (replace(a, clock_mhz=sized[a.job_id].clock_mhz) for a in plan.assignments)
        return replace(plan, assignments=tuple(assignments))


@dataclass(frozen=True)
class StsSizes:
    """A decision of the stochastic scheduler."""

    sized: Mapping[str, Sized]  # What each job gets, at the default clock.
    nodes: Mapping[str, int]  # Job -> node of its GPUs.
    wake_s: float  # When to decide again; inf: at the next arrival or end.


def sts_sizes(
    jobs: Sequence[ActiveJob], state: ClusterState, gpu_w: float, *, keeps: bool
) -> StsSizes:
    """Decide for all jobs that wait or run; ``keeps``: as of `decide`.

    ``gpu_w``: power of a GPU of a job without a size table.
    """
    now, width = state.clock.now, state.idle.shape[1]
    wide = [a for a in jobs if (a.size if a.placed else a.request.gpus) > width]
    others = [a for a in jobs if a not in wide]
    beside = {a.position for a in wide if a.placed is not None}
    room = state.view(beside, with_holders=False).free.sum(axis=1).tolist()
    nodes = [DueNode(_MODEL, gpus) for gpus in room]
    asked = [
        _due_job(active, width, gpu_w, now, state.settings.restart_s(active.job))
        for active in others
    ]
    decision = decide(asked, nodes, now, PERIOD_S, keeps=keeps)
    sized = {a.job.job_id: Sized(a.size if a.placed else a.request.gpus) for a in wide}
    sized |= dict.fromkeys(decision.waiting, Sized(0))
    sized |= {name: Sized(round(one.share.gpus)) for name, one in decision.jobs.items()}
    wake_s = max(decision.wake, now + _LEAST_S)
    if decision.waiting and decision.jobs:
        wake_s = min(wake_s, now + PERIOD_S)
    return StsSizes(sized, {n: one.share.node for n, one in decision.jobs.items()}, wake_s)


def _due_job(active: ActiveJob, width: int, gpu_w: float, now: float, restart_s: float) -> DueJob:
    """A job as the scheduler sees it; costs in J.

    Time for the restarts of its growth, size by size, is taken off its due date.
    """
    name, request, held = active.job.job_id, active.request, None
    if active.placed is not None:
        held = Share(active.placed.nodes[0], active.size)
    known, due = due_work(request, now), request.get(DUE_DATE)
    speeds = None if known is None else up_to(known[1], width)
    if known is None or speeds is None or due is None:
        gpus = active.size if held else request.gpus
        seconds = max(min(request.expected_s, 1e9), 1.0)
        one = Speeds(np.array([float(gpus)]), np.ones(1), np.array([gpus * gpu_w]))
        work = empirical([seconds], seconds)
        return DueJob(name, math.inf, 0.0, work, {_MODEL: one}, held, movable=False)
    late = due.weight * LATE_COST * float(speeds.power[-1])
    movable = bool(active.job.elastic)
    if active.placed is not None:
        speeds = replace(speeds, speed=speeds.speed / active.placed.slowdown)
    steps = int(np.sum(speeds.gpus > (held.gpus if held else speeds.gpus[0])))
    due_s = due.due_s - (steps * restart_s if movable else 0.0)
    found = {_MODEL: speeds}
    return DueJob(name, due_s, late, known[0], found, held, movable=movable, weight=due.weight)
