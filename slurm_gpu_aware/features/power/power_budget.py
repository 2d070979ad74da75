"""Power of a round before placement: what each job needs at least, and what the limit leaves.

Under a limit power is a resource of the cluster like free CPUs, so that reservation, backfill and
preemption keep it: `Cluster.power_w` has what the limit leaves above the power of idle GPUs,
`Request.power_w` and `RunningJob.power_w` are what a job draws above that of its idle GPUs.

- A job whose clock the planner may choose, and whose table is known, counts with its most
  energy-efficient clock (PowerFlow, Algorithm 1); another one with the clock that it has or gets;
  one without a table with the power limit of its GPUs.
- A job that exceeds the limit by itself waits until no other job of ours runs, and then starts
  (`Cluster.has_power`): nothing waits for ever.

Power of a cluster in a round: the limit, what idle GPUs draw, and what running jobs draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.assignment import RunningJobs
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting

LOWERING = "waits for power: the clocks of running jobs are being lowered for it"


@dataclass(frozen=True, eq=False)
class PoweredJob:
    """A running job as a consumer of power."""

    gpus: int
    max_w: float  # Sum of the power limits of its GPUs: what it counts with if it has no table.
    table: SizeTable | None = None
    clock_mhz: int | None = None  # Locked SM clock; None: the default clock.
    adjustable: bool = False
    """Its clock may be changed: an agent works on its nodes, and the job left the clock to us."""
    starts: bool = False  # It starts in this round: it draws no power yet.


@dataclass(frozen=True, eq=False)
class PowerState:
    """What a round must know to keep a power limit."""

    max_w: FloatArray  # (N, W) power limit of each GPU; 0 where there is none.
    idle_w: FloatArray  # (N, W) power of each GPU without a job.
    limit_w: float = math.inf  # Limit for all GPUs of the site, idle ones included; inf: none.
    running: Mapping[str, PoweredJob] = field(default_factory=dict)
    """Slurm's job ID -> running job."""


@dataclass(frozen=True)
class PlannedPower:
    """Power of the site after a round, as its models predict it. Units: W."""

    limit_w: float
    planned_w: float  # All GPUs, idle ones included.
    unmet: bool = False
    """The limit cannot be met: idle GPUs and running jobs at their lowest clocks exceed it."""
    after_lowering: frozenset[str] = frozenset()
    """Jobs that start, or whose clock changes, and whose power is free only when the clocks that
    save power have been set."""


POWER: Facet[PowerState | None] = Facet("power", None, PowerState)
"""Of a round; None: there is no limit, and no clock changes."""
PLANNED: Facet[PlannedPower | None] = Facet("planned power", None)
"""Of a plan; None: there is no power limit."""


def with_least_sizes(queue: Sequence[Request]) -> list[Request]:
    """The queue with every moldable job at its least number of GPUs.

    A job without a table keeps its number: nothing says that it would ever get more.
    """
    return [
        request.resized(request.sizes[0])
        if request.sizes and request.get(TABLE) is not None
        else request
        for request in queue
    ]


def clock_choices(request: Request, settings: PlanSettings) -> tuple[int, ...] | None:
    """SM clocks that a request may get; None: the planner chooses; (): the default clock."""
    if request.get(TABLE) is not None and settings.frees_clock(request.clock):
        return None
    clock_mhz = settings.clock_mhz(request)
    return () if clock_mhz is None else (clock_mhz,)


def power_at(table: SizeTable, gpus: int, clocks: tuple[int, ...] | None) -> float:
    """Power of a job at one clock, or at its most efficient one (None); NaN: not known.

    ``clocks``: as of :func:`clock_choices`.
    """
    row = table.row(gpus)
    if row is None:
        return math.nan
    if clocks is not None:
        return float(table.power_w[row, table.column(clocks[0] if clocks else None)])
    best = table.efficient_clock(gpus)
    return math.nan if best is None else float(table.power_w[row, table.column(best)])


class PowerBudget:
    """The power of a round under a finite limit."""

    def __init__(self, cluster: Cluster, settings: PlanSettings, power: PowerState) -> None:
        self._settings, self._power = settings, power
        self._most: dict[tuple[str | None, int], float] = {}
        self._drawn: set[str] = set()
        idle_w = power.idle_w[power.max_w > 0]
        self.gpu_idle_w = float(idle_w.min()) if idle_w.size else 0.0
        """Least power of a GPU without a job."""
        running = [self._drawing(job) for job in cluster.running]
        own = sum(job.power_w for job in running if job.power_is_ours)
        listed = RunningJobs.of(cluster.running)
        unknown = cluster.exists & ~cluster.not_held & np.isnan(listed.until(cluster.shape))
        foreign = sum(job.power_w for job in running) - own
        foreign += float((power.max_w - power.idle_w)[unknown].sum())
        self.base_w = float(power.idle_w.sum()) + foreign
        """Power of all GPUs if no job of ours runs."""
        self.for_ours_w = power.limit_w - self.base_w
        """What jobs of ours may draw together above the power of idle GPUs."""
        drawing = RunningJobs(running)
        drawing.known_until = listed.known_until
        left = np.array([self.for_ours_w - own, own], dtype=np.float64)
        self.cluster = replace(cluster, running=drawing, power_w=left)
        """The snapshot with its power."""

    @classmethod
    def of(
        cls, cluster: Cluster, settings: PlanSettings, power: PowerState | None
    ) -> PowerBudget | None:
        """The budget; None: there is no limit."""
        limited = power is not None and math.isfinite(power.limit_w)
        return cls(cluster, settings, power) if power is not None and limited else None

    def needing(self, request: Request) -> Request:
        """The request with the power that it needs at least, wherever it is placed."""
        need_w = self.most_w(request) - request.gpus * self.gpu_idle_w
        if (table := request.get(TABLE)) is not None:
            choices = clock_choices(request, self._settings)
            drawn_w = power_at(table, request.gpus, choices)
            if not math.isnan(drawn_w):
                need_w = drawn_w - request.gpus * self.gpu_idle_w
        return replace(request, power_w=max(need_w, 0.0))

    def clock_mhz(self, request: Request) -> int | None:
        """SM clock with which `needing` counts, MHz; None: the default clock."""
        table = request.get(TABLE)
        if table is None or clock_choices(request, self._settings) is not None:
            return self._settings.clock_mhz(request)
        return table.efficient_clock(request.gpus)

    def present_clock_mhz(self, request: Request) -> int | None:
        """The same of a running job: the clock that it has, if that cannot be changed."""
        known = self._power.running.get(request.job_id)
        if known is None or known.adjustable:
            return self.clock_mhz(request)
        return known.clock_mhz

    def present_w(self, job: RunningJob) -> float:
        """Power of a running job above that of its idle GPUs, at its present clock."""
        known = self._power.running.get(job.job_id)
        return job.power_w if known is None else self._above(known, present_w(known))

    def with_job(self, job_id: str, gpus: int, power_w: float, *, starts: bool) -> PowerState:
        """The power state with a job that draws so much above the power of its idle GPUs."""
        known = PoweredJob(gpus, power_w + gpus * self.gpu_idle_w, starts=starts)
        return replace(self._power, running={**self._power.running, job_id: known})

    def most_w(self, request: Request) -> float:
        """Sum of the power limits of its GPUs, whichever of those that it may get."""
        key = request.nodes.gpu_model, id(request.nodes.eligible)
        if key not in self._most:
            allowed = allowed_nodes(request, self.cluster)
            there = self.cluster.exists
            there = there if allowed is None else there & allowed[:, None]
            self._most[key] = float(np.max(self._power.max_w, where=there, initial=0.0))
        return request.gpus * self._most[key]

    def _drawing(self, job: RunningJob) -> RunningJob:
        """A running job with its power above idle."""
        nodes, slots = np.array(job.each_gpu, dtype=np.int64).reshape(-1, 2).T
        known = self._power.running.get(job.job_id)
        if known is None:
            above = self._power.max_w[nodes, slots] - self._power.idle_w[nodes, slots]
            return replace(job, power_w=float(above.sum()), power_is_ours=False)
        if job.job_id in self._drawn:  # a job on a move holds its old GPUs and its new ones
            return replace(job, power_w=0.0)
        self._drawn.add(job.job_id)
        return replace(job, power_w=self._above(known, least_w(known)))

    def _above(self, job: PoweredJob, power_w: float) -> float:
        return max(power_w - job.gpus * self.gpu_idle_w, 0.0)


BUDGET: Facet[PowerBudget | None] = Facet("power budget", None)
"""Of a round; None: there is no limit."""


def least_w(job: PoweredJob) -> float:
    """Power of a running job: at its most efficient clock if that can be set, else at its own."""
    if not job.adjustable or job.table is None:
        return present_w(job)
    drawn_w = power_at(job.table, job.gpus, None)
    return job.max_w if math.isnan(drawn_w) else drawn_w


def present_w(job: PoweredJob) -> float:
    """Power of a running job at its present clock."""
    if job.table is None:
        return job.max_w
    drawn_w = power_at(job.table, job.gpus, () if job.clock_mhz is None else (job.clock_mhz,))
    return job.max_w if math.isnan(drawn_w) else drawn_w


def after_lowering(plan: Plan) -> frozenset[str]:
    """Jobs that wait for clocks that the plan lowers."""
    planned = plan.get(PLANNED)
    return frozenset() if planned is None else planned.after_lowering


def lowering_first(plan: Plan) -> Plan:
    """The plan without the jobs that wait for clocks that it lowers."""
    after = after_lowering(plan)
    later = [a.job_id for a in plan.assignments if a.job_id in after]
    if not later:
        return plan
    return replace(
        plan,
        assignments=tuple(a for a in plan.assignments if a.job_id not in later),
        waiting=plan.waiting + tuple(Waiting(job_id, LOWERING) for job_id in later),
    )


def budget_of(one: Round) -> PowerBudget | None:
    """The budget of a round; None: there is no limit."""
    return PowerBudget.of(one.cluster, one.settings, one.get(POWER))
