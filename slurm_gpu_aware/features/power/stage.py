"""Stages of a round: the power that a limit leaves, and sizes and clocks of the jobs.

Sizes and clocks of a round after placement: what no waiting job can use goes to growth.

1. Every job has been placed at its least number of GPUs, in Slurm's order.
2. Moldable jobs with a table grow n -> 2n by marginal return, on GPUs and power that are free now
   and still free when the head of the queue starts. So growth delays no reservation. A feature may
   bound the size of a job (`MOST_GPUS`).
3. Under a power limit the clocks of the jobs that start, and of running jobs whose clock can be
   changed, rise by marginal return up to the limit (PowerFlow, Algorithm 1).

A clock that falls frees power only once it has been set. Jobs that need that power are marked in
`PlannedPower.after_lowering`.

Account of size and clock: what a GPU step or a clock step more would have brought and cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from slurm_gpu_aware.features.power.declared import Grown, OverLimit, SizePower, Step
from slurm_gpu_aware.features.power.menu import Sized, SizingJob
from slurm_gpu_aware.features.power.power_budget import (
    BUDGET,
    PLANNED,
    POWER,
    PlannedPower,
    PowerBudget,
    PoweredJob,
    PowerState,
    budget_of,
    clock_choices,
    present_w,
    with_least_sizes,
)
from slurm_gpu_aware.features.power.powerflow import allocate
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import POWER_W, RunningJob
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.planning.placed import Placement, Round, Started
from slurm_gpu_aware.planning.plan import ClockChange, Plan, PlanSettings
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.planning.timeline import Timeline, as_running, keep_least, take

MOST_GPUS: Facet[Mapping[str, int]] = Facet("most GPUs", {})
"""Of a round: job that starts -> the most GPUs to which it grows; the others grow freely."""


def size_power(
    table: SizeTable, gpus: int, clock_mhz: int | None, *, more_gpus: int | None, free_clock: bool
) -> SizePower | None:
    """Power of a job, and the gain and cost of one step more; None: the table does not say.

    Parameters
    ----------
    more_gpus : the next number of GPUs that the job may get; None: there is none.
    free_clock : the clock may be chosen, so a step of the clock is told, too.
    """
    row, column = table.row(gpus), table.column(clock_mhz)
    if row is None or not math.isfinite(table.time_s[row, column] * table.power_w[row, column]):
        return None
    above = None if more_gpus is None else table.row(more_gpus)
    faster = free_clock and column + 1 < len(table.clocks_mhz)
    more_mhz = int(table.clocks_mhz[column + 1]) if faster else None
    return SizePower(
        gpus,
        round(float(table.power_w[row, column]), 1),
        clock_mhz,
        table.source,
        None if above is None else _step(table, (row, column), (above, column), gpus=more_gpus),
        _step(table, (row, column), (row, column + 1), clock_mhz=more_mhz) if faster else None,
    )


def _step(
    table: SizeTable, here: tuple[int, int], there: tuple[int, int], **what: int | None
) -> Step | None:
    """Gain in time and cost in energy of a step, percent; None: not known."""
    time = float(table.time_s[there] / table.time_s[here])
    energy = time * float(table.power_w[there] / table.power_w[here])
    if not math.isfinite(time * energy):
        return None
    return Step(round(100 * (1 - time), 1), round(100 * (energy - 1), 1), **what)


def with_account(request: Request, assignment: Assignment, settings: PlanSettings) -> Assignment:
    """The assignment with the power of its size and clock, if its model is known."""
    table = request.get(TABLE)
    if table is None:
        return assignment
    fact = size_power(
        table,
        request.gpus,
        assignment.clock_mhz,
        more_gpus=next((size for size in request.sizes if size > request.gpus), None),
        free_clock=settings.frees_clock(request.clock),
    )
    return assignment if fact is None else assignment.explained(fact)


def sized(one: Round, placement: Placement) -> Plan:
    """The plan of a round with the sizes and clocks that its starts get of what is spare."""
    sizing = _Sizing(one, placement)
    found = sizing.grown(placement.started)
    budget, power = one.get(BUDGET), one.get(POWER)
    if budget is None or power is None:  # there is no limit, and clocks stay
        accounts = (with_account(job.request, job.assignment, one.settings) for job in found)
        return replace(one.plan, assignments=tuple(accounts))
    return sizing.clocked(one.plan, found, power, budget)


class _Sizing:
    """Growth of one round."""

    def __init__(self, one: Round, placement: Placement) -> None:
        self.spare, self.most = placement.spare.copy(), one.get(MOST_GPUS)
        self.dispatcher, self.budget = placement.dispatcher, one.get(BUDGET)
        power = one.get(POWER)
        self.running: Mapping[str, PoweredJob] = {} if power is None else power.running
        self.idle_w = 0.0 if self.budget is None else self.budget.gpu_idle_w

    @cached_property
    def adjustable(self) -> dict[str, RunningJob]:
        """Running jobs whose clock can be changed."""
        jobs = () if self.budget is None else self.budget.cluster.running
        return {
            job.job_id: job
            for job in jobs
            if (known := self.running.get(job.job_id)) and known.adjustable and known.table
        }

    def grown(self, started: Sequence[Started]) -> list[Started]:
        """The jobs at the sizes that they get, in the same order."""
        if not any(map(_may_grow, started)) or not self.spare.free.any():
            return list(started)
        wanted = self._allocate(started, grow=True)
        return [self._at_size(one, wanted[one.request.job_id].gpus) for one in started]

    def _at_size(self, one: Started, gpus: int) -> Started:
        """The job at the largest size up to ``gpus`` that has a place and pays."""
        for size in reversed(one.request.sizes):
            if one.request.gpus < size <= gpus and (more := self._placed(one, size)) is not None:
                return more
        return one

    def _placed(self, one: Started, gpus: int) -> Started | None:
        """The job on more GPUs; None: it has no place there, or is not faster there."""
        request = one.request.resized(gpus)
        if self.budget is not None:
            request = self.budget.needing(request)
        now = self.dispatcher.now
        after = Timeline([one.job], now).at(self.spare, math.inf)
        found = self.dispatcher.could_place(request, after)
        if found is None or found.exact != one.assignment.exact or not _faster(one, request, found):
            return None
        held = take(after, request, found)
        if any(share.unsure for share in held.values()):
            return None
        keep_least(self.spare, self.spare, after, slice(None))
        clock_mhz = self.dispatcher.settings.clock_mhz(request)
        found = replace(found.explained(Grown(one.request.gpus)), clock_mhz=clock_mhz)
        return Started(request, found, as_running(request, found, now, held))

    def _allocate(self, started: Sequence[Started], *, grow: bool) -> Mapping[str, Sized]:
        """What each job gets of its own GPUs and power and the spare ones."""
        jobs = [self._sizing_job(one, grow=grow) for one in started]
        jobs += [self._running_job(job) for job in self.adjustable.values()]
        gpus = sum(job.sizes[0] for job in jobs) + (int(self.spare.free.sum()) if grow else 0)
        limit_w = math.inf
        if self.budget is not None and (left := self.budget.cluster.power_w) is not None:
            new = sum(one.request.power_w for one in started)
            now = float(left[0]) - new
            # A waiting job that exceeds the limit by itself starts when no other one runs.
            spare = float(self.spare.power_w[0]) if self.spare.power_w is not None else now
            own = new + sum(job.power_w for job in self.adjustable.values())
            limit_w = gpus * self.idle_w + own + max(spare, min(now, 0.0))
        return allocate(jobs, gpus, limit_w, idle_w=self.idle_w).jobs

    def _sizing_job(self, one: Started, *, grow: bool) -> SizingJob:
        request, settings = one.request, self.dispatcher.settings
        sizes = request.sizes if grow and _may_grow(one) else ()
        most = self.most.get(request.job_id, math.inf)
        return SizingJob(
            request.job_id,
            tuple(size for size in sizes if request.gpus <= size <= most) or (request.gpus,),
            0.0 if self.budget is None else self.budget.most_w(request),
            request.get(TABLE),
            clock_choices(request, settings),
            _own_time(request.get(TABLE), request.gpus),
            must_run=True,
        )

    def _running_job(self, job: RunningJob) -> SizingJob:
        known = self.running[job.job_id]
        table = known.table
        work = _own_time(table, known.gpus)
        return SizingJob(job.job_id, (known.gpus,), known.max_w, table, None, work, must_run=True)

    def clocked(
        self, plan: Plan, started: Sequence[Started], power: PowerState, budget: PowerBudget
    ) -> Plan:
        """The plan with the clocks of all jobs, and the power that they draw together."""
        chosen = self._allocate(started, grow=False)
        placed = [self._at_clock(one, chosen[one.request.job_id]) for one in started]
        changes = [
            change
            for job_id in self.adjustable
            if (change := _change(job_id, self.running[job_id], chosen[job_id])) is not None
        ]
        ours = [job for job in budget.cluster.running if job.job_id in self.running]
        starting = {j.job_id: j.power_w for j in ours if self.running[j.job_id].starts}
        present = {
            job.job_id: present_w(self.running[job.job_id])
            for job in ours
            if job.job_id not in starting
        }
        idle_w = self.idle_w * sum(self.running[job_id].gpus for job_id in present)
        drawn = {one.request.job_id: self._above(chosen[one.request.job_id]) for one in started}
        later = {job_id: self._above(chosen[job_id]) for job_id in self.adjustable}
        fixed = [job.power_w for job in ours if job.job_id not in self.adjustable]
        planned_w = budget.base_w + sum(fixed) + sum(later.values()) + sum(drawn.values())
        changes.sort(key=lambda change: change.power_w > present[change.job_id])
        more = starting | drawn | {c.job_id: c.power_w - present[c.job_id] for c in changes}
        now_w = sum(present.values()) - idle_w
        if unmet := planned_w > power.limit_w + POWER_W:
            placed = [one.explained(OverLimit(planned_w, power.limit_w)) for one in placed]
        after = _after_lowering(more, budget.for_ours_w - now_w)
        planned = PlannedPower(power.limit_w, planned_w, unmet, after)
        plan = replace(plan, assignments=tuple(placed), clocks=tuple(changes))
        return plan.put(PLANNED, planned)

    def _above(self, got: Sized) -> float:
        """Power of a job above that of its idle GPUs."""
        return got.power_w - got.gpus * self.idle_w

    def _at_clock(self, one: Started, got: Sized) -> Assignment:
        """The assignment at its clock, with the account of it."""
        request, assignment = one.request, one.assignment
        if clock_choices(request, self.dispatcher.settings) is None and got.clock_mhz is not None:
            assignment = replace(assignment, clock_mhz=got.clock_mhz)
        return with_account(request, assignment, self.dispatcher.settings)


def _may_grow(one: Started) -> bool:
    """Whether a job may get more GPUs."""
    return (
        one.request.get(TABLE) is not None
        and not one.request.nodes.whole
        and not one.assignment.victims
        and bool(one.request.sizes)
        and one.request.sizes[-1] > one.request.gpus
    )


def _after_lowering(more: Mapping[str, float], room_w: float) -> frozenset[str]:
    """Jobs that need power which is free only when clocks have been lowered.

    ``more``: job -> power that it takes in addition to the present, in order; negative: it saves
    power, and waits for none. ``room_w``: power that is free at the present clocks; negative after
    the limit has fallen.
    """
    after = set()
    if min(more.values(), default=0.0) < 0:
        for job_id, power_w in more.items():
            if power_w > max(room_w, 0.0) + POWER_W:
                after.add(job_id)
            elif power_w > 0:
                room_w -= power_w
    return frozenset(after)


def _change(job_id: str, known: PoweredJob, got: Sized) -> ClockChange | None:
    """The new clock of a running job; None: it keeps its clock."""
    table = known.table
    if table is None or got.clock_mhz is None:
        return None
    if table.column(got.clock_mhz) == table.column(known.clock_mhz):
        return None
    return ClockChange(job_id, got.clock_mhz, got.power_w)


def _faster(one: Started, request: Request, found: Assignment) -> bool:
    """Say whether a job ends sooner on more GPUs, where these lie."""
    table = request.get(TABLE)
    rows = (None, None) if table is None else (table.row(one.request.gpus), table.row(request.gpus))
    if table is None or rows[0] is None or rows[1] is None:
        return False
    before, after = (float(table.time_s[row, -1]) for row in rows)
    return after * found.slowdown < before * one.assignment.slowdown


def _own_time(table: SizeTable | None, gpus: int) -> float:
    """Iterations in a second at the default clock: a step counts by its share of the job's time.

    So two steps that save a tenth of a long job and of a short one count alike, as in PowerFlow's
    eq. 20: the power of the long one would be gone for longer.
    """
    row = None if table is None else table.row(gpus)
    time_s = math.nan if table is None or row is None else float(table.time_s[row, -1])
    return 1.0 / time_s if 0 < time_s < math.inf else 1.0


class Limit(Stage):
    """The power that the limit of the site leaves for the jobs of the queue."""

    name = "power limit"
    reads = (TABLE,)
    inputs = (POWER,)

    def before(self, one: Round) -> Round:
        """The round with its budget."""
        return one.put(BUDGET, budget_of(one))


class Sizing(Stage):
    """Each job is placed at its least size; what is spare goes to sizes and clocks."""

    name = "sizes and clocks"
    reads = (TABLE,)

    def before(self, one: Round) -> Round:
        """The queue at its least sizes, with the power that each job needs."""
        queue: Sequence[Request] = one.queue
        budget, moldable = one.get(BUDGET), any(request.sizes for request in queue)
        if moldable:
            queue = with_least_sizes(queue)
        if budget is not None:
            queue = [budget.needing(request) for request in queue]
            one = replace(one, cluster=budget.cluster)
        if queue is one.queue and not one.grows:
            return one
        return replace(one, queue=queue, grows=moldable or budget is not None)

    def after(self, one: Round) -> Round:
        """The plan with the sizes and clocks that the jobs get."""
        placement = one.placement
        if placement is None or not one.grows:
            return one
        return replace(one, plan=sized(one, placement))
