"""Stochastic scheduler: GPUs of all jobs with due dates at one time (STS, Algorithms 2 and 3).

Jobs come in the order of their pressure. Each gets the size and the GPU model at which it is
expected to cost least, on the node of that model that it fills best. Where that is not free, it
gets the cheapest of what is free, or waits, whichever is expected to cost less. A job never gets
fewer GPUs than it has, and jobs that may not be moved stay as they are. A running job moves only
where its node has no room for its growth: to as many GPUs as planned, or to a faster GPU model.
What it leaves is first for the jobs before it.

With ``keeps`` False each decision places all jobs anew, as the authors' own code does: a running
job that may be moved loses its GPUs where more pressing jobs take them, and waits. While it runs,
it never gets fewer.

The paper leaves open what a second choice is and when a job is postponed. Here both follow from one
rule: the cost of some size until the next decision, and of the optimum from there. Waiting is the
size 0, at which being late costs more (rho in the paper).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.features.due_dates.declared import pressing
from slurm_gpu_aware.features.due_dates.free_gpus import DueNode, FreeGpus, Share
from slurm_gpu_aware.features.due_dates.work import (
    GrowthPlan,
    WorkDistribution,
    best_constant,
    constant,
    optimum,
)
from slurm_gpu_aware.features.sizes.speeds import Speeds
from slurm_gpu_aware.model.arrays import BoolArray

AT_ONCE = 1e-6
"""Share of its longest time in which a job leaves a size that it then does not get at all."""


@dataclass(frozen=True, eq=False)
class DueJob:
    """A job with a due date. Times, costs and work are in any units, the same for all jobs."""

    job_id: str
    due: float  # Time by which it should end.
    late_cost: float  # Cost of a unit of time that it ends late.
    work: WorkDistribution  # Given what is done.
    speeds: Mapping[str, Speeds]  # GPU model -> sizes on one node of that model.
    held: Share | None = None  # What it runs on.
    movable: bool = True  # It may be stopped and started elsewhere, or with more GPUs.
    weight: float = 1.0  # Of its pressure; see `pressing`.
    allowed: BoolArray | None = None  # (N,) nodes that it may get; None: all.


@dataclass(frozen=True)
class Given:
    """What a job gets, and its plan from now on."""

    share: Share
    plan: GrowthPlan | None
    """Of a job that may be moved it may begin with more GPUs than were free. None: a running job
    whose speeds are unknown."""


@dataclass(frozen=True)
class Decision:
    """What all jobs get."""

    jobs: Mapping[str, Given]  # Those that run, in the order of pressure.
    waiting: tuple[str, ...]  # Those that do not, in the order of pressure.
    wake: float  # Time at which the first job should grow; inf: none should.
    wanted: Mapping[str, tuple[str, float]]
    """Job that waits though GPUs are free -> (GPU model, size) at which it is expected to cost
    least."""


@dataclass(frozen=True)
class _Choice:
    """A plan on a GPU model, and all its cost."""

    cost: float
    model: str
    size: float
    plan: GrowthPlan


def decide(
    jobs: Sequence[DueJob],
    nodes: Sequence[DueNode],
    now: float,
    period: float,
    late_factor: float = 2.0,
    *,
    keeps: bool = True,
    ordered: bool = False,
) -> Decision:
    """GPUs of each job from now on.

    Parameters
    ----------
    period : time to the next decision, as far as known.
    late_factor : being late counts so many times for a job that waits (rho, above 1).
    keeps : running jobs keep their GPUs; False: only those that may not be moved.
    ordered : jobs come in the order in which they are given, not by their pressure.

    ValueError: jobs hold GPUs that the nodes do not have.
    """
    return _Round(nodes, now, period, late_factor, keeps).decide(jobs, ordered=ordered)


class _Round:
    """One decision, job by job."""

    def __init__(
        self,
        nodes: Sequence[DueNode],
        now: float,
        period: float,
        late_factor: float,
        keeps: bool,
    ) -> None:
        self.free = FreeGpus(nodes)
        self.nodes = nodes
        self.models = {node.model for node in nodes}
        self.now, self.period, self.late_factor = now, period, late_factor
        self.keeps = keeps
        self.wanted: dict[str, tuple[str, float]] = {}

    def decide(self, jobs: Sequence[DueJob], *, ordered: bool) -> Decision:
        for job in jobs:
            if (held := self._kept(job)) is not None:
                self.free.take(held)
        in_turn = jobs if ordered else sorted(jobs, key=self._pressure, reverse=True)
        given = self._in_turn(in_turn)
        for job in in_turn:
            if job.movable and job.job_id in given:
                given[job.job_id] = self._again(job, given[job.job_id])
        waiting = tuple(job.job_id for job in in_turn if job.job_id not in given)
        growth = (one.plan.growth_time(one.share.gpus) for one in given.values() if one.plan)
        return Decision(given, waiting, self.now + min(growth, default=math.inf), self.wanted)

    def _in_turn(self, jobs: Sequence[DueJob]) -> dict[str, Given]:
        """What each job gets. What one leaves that moves is first for those before it."""
        given: dict[str, Given] = {}
        turn = 0
        while turn < len(jobs):
            job, held = jobs[turn], self._kept(jobs[turn])
            turn += 1
            had = given.get(job.job_id)
            if had is not None and (had.share != held or not _lacks(had)):
                continue
            found = self._start(job) if held is None else self._go_on(job, held)
            if found is not None:
                given[job.job_id] = found
                self.wanted.pop(job.job_id, None)
                there = found.share.node, found.share.slot
                if held is not None and there != (held.node, held.slot):
                    turn = 0
        return {job.job_id: given[job.job_id] for job in jobs if job.job_id in given}

    def _kept(self, job: DueJob) -> Share | None:
        """What a job has and keeps."""
        return job.held if self.keeps or not job.movable else None

    def _pressure(self, job: DueJob) -> float:
        """Time by which it is late at best, with all its work (equation 27), by its weight."""
        amount = job.work.most - job.work.done
        least = min((float(s.unit_time[-1]) for s in job.speeds.values()), default=math.inf)
        return pressing(self.now + amount * least - job.due, job.weight)

    def _start(self, job: DueJob) -> Given | None:
        """What a job gets that does not run, or has to be placed anew; None: it waits."""
        held = job.held
        if held is not None:
            job = replace(job, speeds=_from_size(job.speeds, held.gpus))
        if not self.free.any or not (choices := self._choices(job, job.speeds)):
            return None
        share = None
        if held is not None and self.nodes[held.node].model == choices[0].model:
            share = self.free.on_node(held.node, choices[0].size)
        share = share or self._best_fit(job, choices[0].model, choices[0].size)
        if share is not None:
            self.free.take(share)
            return Given(share, choices[0].plan)
        seconds = self._second_choices(job, choices)
        cost, best = min(seconds, key=lambda second: second[0], default=(math.inf, None))
        if best is None or cost > self._cost_of_waiting(job):
            self.wanted[job.job_id] = choices[0].model, choices[0].size
            return None
        self.free.take(best.share)
        return best

    def _go_on(self, job: DueJob, held: Share) -> Given:
        """What a running job gets: more GPUs if its plan says so, on its own node if it can."""
        own_model = self.nodes[held.node].model
        kept = _from_size(job.speeds, held.gpus)
        own = self._choices(job, {own_model: kept.pop(own_model)}) if own_model in kept else []
        if not own:
            return Given(held, None)
        if not job.movable or own[0].size <= held.gpus:
            return Given(held, own[0].plan)
        self.free.give_back(held)
        best = self._grown(job, held, own[0], kept)
        self.free.take(best.share)
        return best

    def _grown(self, job: DueJob, held: Share, own: _Choice, others: Mapping[str, Speeds]) -> Given:
        """The size planned: on its own node, on another one, on another model; or what it holds.

        A part of the growth is not worth having: it costs energy, leaves less for others, and the
        end of another job may soon free the whole of it.
        """
        found = self.free.on_node(held.node, own.size)
        if found is not None:
            return Given(found, own.plan)
        for choice in sorted([own, *self._choices(job, others)], key=lambda c: c.cost):
            found = self._best_fit(job, choice.model, choice.size)
            if found is not None:
                return Given(found, choice.plan)
        return Given(held, own.plan)

    def _again(self, job: DueJob, given: Given) -> Given:
        """Idle GPUs for a job that has fewer than planned, and no move that is needless by now."""
        share, plan = given.share, given.plan
        self.free.give_back(share)
        if job.held is not None and job.held.node != share.node:
            alike = self.nodes[job.held.node].model == self.nodes[share.node].model
            share = (self.free.on_node(job.held.node, share.gpus) if alike else None) or share
        if plan is not None and _lacks(given):
            share = self.free.on_node(share.node, _first_size(plan)) or share
        self.free.take(share)
        return Given(share, plan)

    def _choices(
        self, job: DueJob, speeds: Mapping[str, Speeds], later: float = 0.0
    ) -> list[_Choice]:
        """The best plan on each GPU model, some time later, cheapest first."""
        found = [
            self._choice(job, model, some, job.work, later)
            for model, some in speeds.items()
            if model in self.models
        ]
        return sorted(found, key=lambda choice: choice.cost)

    def _choice(
        self, job: DueJob, model: str, speeds: Speeds, work: WorkDistribution, later: float
    ) -> _Choice:
        best = optimum if job.movable else best_constant
        plan = best(work, speeds, job.due - self.now - later)
        return _Choice(plan.cost + job.late_cost * plan.late, model, _first_size(plan), plan)

    def _best_fit(self, job: DueJob, model: str, size: float) -> Share | None:
        return self.free.best_fit(model, size, job.allowed)

    def _cost_of_waiting(self, job: DueJob) -> float:
        """Cost if the job waits for a period and gets its best plan then."""
        more = (self.late_factor - 1) * job.late_cost
        later = self._choices(job, job.speeds, self.period)
        return min(choice.cost + more * choice.plan.late for choice in later)

    def _second_choices(
        self, job: DueJob, choices: Sequence[_Choice]
    ) -> Iterator[tuple[float, Given]]:
        """(cost, what the job gets): the plans that can start, and the next smaller sizes."""
        for choice in choices:
            share = self._best_fit(job, choice.model, choice.size)
            if share is not None:
                yield choice.cost, Given(share, choice.plan)
                continue
            sizes = job.speeds[choice.model].gpus
            for size in sizes[sizes < choice.size][::-1].tolist():
                if (share := self._best_fit(job, choice.model, size)) is not None:
                    smaller = self._smaller(job, choice, size)
                    yield smaller.cost, Given(share, smaller.plan)
                    break

    def _smaller(self, job: DueJob, choice: _Choice, size: float) -> _Choice:
        """A size for a period and the optimum from there; or the size to the end."""
        speeds = job.speeds[choice.model]
        k = int(np.searchsorted(speeds.gpus, size))
        done = job.work.done + self.period * float(speeds.speed[k])
        if not job.movable or done >= job.work.most:
            plan = constant(job.work, speeds, k, job.due - self.now)
            cost = plan.cost + job.late_cost * plan.late
            return _Choice(cost, choice.model, size, choice.plan if job.movable else plan)
        at = np.array([done])
        ends_later = float(job.work.survival(at)[0])
        kept = speeds.at_least(size) or speeds
        then = self._choice(job, choice.model, kept, job.work.given(done), self.period).plan
        now = float(job.work.integral(at)[0]) * float(speeds.unit_cost[k])
        cost = now + ends_later * then.cost + job.late_cost * then.late
        return _Choice(cost, choice.model, size, choice.plan)


def _from_size(speeds: Mapping[str, Speeds], gpus: float) -> dict[str, Speeds]:
    """The sizes that are not below this one."""
    return {model: kept for model in speeds if (kept := speeds[model].at_least(gpus)) is not None}


def _lacks(given: Given) -> bool:
    """Whether a job gets fewer GPUs than planned."""
    return given.plan is not None and _first_size(given.plan) > given.share.gpus


def _first_size(plan: GrowthPlan) -> float:
    """The size that a plan begins with."""
    at_once = len(plan.gpus) > 1 and plan.leaves[0] <= AT_ONCE * plan.longest
    return plan.gpus[1] if at_once else plan.gpus[0]
