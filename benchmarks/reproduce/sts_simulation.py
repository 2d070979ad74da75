"""Simulation of jobs with due dates under a scheduler, event by event."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sts_instances import Instance, Submitted

from slurm_gpu_aware.features.due_dates.free_gpus import DueNode, Share
from slurm_gpu_aware.features.due_dates.sts import DueJob, decide

Shares = Mapping[str, Share]
Scheduler = Callable[[Sequence[DueJob], Sequence[DueNode], float, float], tuple[Shares, float]]
"""(jobs, nodes, now, period) -> what each job gets, and the time at which to ask again."""
ENDED = 1e-9
LATE = 1e-6
"""Share of the time from submission to due date that is rounding."""


@dataclass(frozen=True)
class Outcome:
    """What a scheduler made of an instance."""

    energy: float
    """$."""
    tardiness: float
    """$."""
    late: float
    """Share of the jobs."""
    moves: int
    lowered: int
    """Times a running job got fewer GPUs, none included."""

    @property
    def total(self) -> float:
        return self.energy + self.tardiness


def sts(*, keeps: bool) -> Scheduler:
    """The stochastic scheduler; ``keeps``: as of `decide`.

    A plan stays the best one while the job runs by it, so that a job that keeps its GPUs is planned
    again when it should grow. Until then it is a job without speeds, which keeps what it has.
    """
    settled: dict[str, float] = {}

    def schedule(
        jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
    ) -> tuple[Shares, float]:
        asked = [
            replace(job, speeds={}) if settled.get(job.job_id, now) > now else job for job in jobs
        ]
        decision = decide(asked, nodes, now, period, keeps=keeps)
        for name, given in decision.jobs.items() if keeps else ():
            if given.plan is not None and given.share.gpus in given.plan.gpus:
                settled[name] = now + given.plan.growth_time(given.share.gpus)
        grows = (settled.get(name, math.inf) for name in decision.jobs)
        wake = min((time for time in grows if time > now), default=math.inf)
        return {n: given.share for n, given in decision.jobs.items()}, min(decision.wake, wake)

    return schedule


class _Run:
    """State of a simulation."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.done: dict[int, float] = {}
        """Of each job that is in the system."""
        self.shares: dict[int, Share] = {}
        self.rates: dict[int, tuple[float, float]] = {}
        """(epochs per s, $ per s) of each running job."""
        self.energy = self.tardiness = 0.0
        self.late = self.moves = self.lowered = 0

    def rate(self, n: int, share: Share) -> tuple[float, float]:
        speeds = self.instance.jobs[n].speeds[self.instance.nodes[share.node].model]
        k = int(np.searchsorted(speeds.gpus, share.gpus))
        return float(speeds.speed[k]), float(speeds.power[k])

    def next_end(self, now: float) -> float:
        left = (
            (self.instance.jobs[n].epochs - self.done[n]) / speed
            for n, (speed, _) in self.rates.items()
        )
        return now + max(min(left, default=math.inf), 0.0)

    def advance(self, start: float, end: float) -> None:
        """Let the jobs run, and end those that have done their work."""
        for n, (speed, power) in list(self.rates.items()):
            job = self.instance.jobs[n]
            self.energy += power * (end - start)
            self.done[n] += speed * (end - start)
            if self.done[n] >= job.epochs * (1 - ENDED):
                del self.done[n], self.shares[n], self.rates[n]
                if (over := end - job.due_s) > LATE * (job.due_s - job.submit_s):
                    self.tardiness += over * job.late_cost
                    self.late += 1

    def due_job(self, n: int, job: Submitted) -> DueJob:
        work = job.work.given(self.done[n]) if self.done[n] > 0 else job.work
        return DueJob(str(n), job.due_s, job.late_cost, work, job.speeds, self.shares.get(n))

    def give(self, shares: Shares) -> None:
        for n in self.done:
            old, new = self.shares.get(n), shares.get(str(n))
            self.lowered += old is not None and (new is None or new.gpus < old.gpus)
            self.moves += old is not None and new is not None and new.node != old.node
            if new is None:
                self.rates.pop(n, None)
            elif new != old:
                self.rates[n] = self.rate(n, new)
        self.shares = {int(name): share for name, share in shares.items()}


def simulate(instance: Instance, scheduler: Scheduler) -> Outcome:
    """Run an instance: a decision at each arrival, each end, and whenever the scheduler asks."""
    state, now, arrived = _Run(instance), 0.0, 0
    jobs = instance.jobs
    while arrived < len(jobs) or state.done:
        asked = now
        while arrived < len(jobs) and jobs[arrived].submit_s <= now:
            state.done[arrived] = 0.0
            arrived += 1
        wake = math.inf
        if state.done:
            present = [state.due_job(n, jobs[n]) for n in state.done]
            shares, wake = scheduler(present, instance.nodes, now, instance.period_s)
            state.give(shares)
            if len(shares) < len(present):
                wake = min(wake, now + instance.period_s)
        arrival = jobs[arrived].submit_s if arrived < len(jobs) else math.inf
        now = max(min(arrival, state.next_end(now), wake), asked)
        state.advance(asked, now)
    count = len(jobs)
    return Outcome(
        state.energy,
        state.tardiness,
        state.late / count,
        state.moves,
        state.lowered,
    )
