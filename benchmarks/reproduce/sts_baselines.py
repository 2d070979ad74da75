"""Schedulers that the stochastic scheduler is compared with: EDF, RG, DP.

Each decides from the longest times of jobs or, in the average-time variants, from their mean
times. EDF chooses the size of a job when it starts, and never again, as its authors' code does
(``First_principle_methods::perform_assignment``). RG and DP decide anew for all jobs; stops, moves
and changes of size are free for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np
from sts_simulation import Scheduler, Shares

from slurm_gpu_aware.features.due_dates.free_gpus import DueNode, FreeGpus, Share
from slurm_gpu_aware.features.due_dates.sts import DueJob
from slurm_gpu_aware.features.due_dates.work import Shape, WorkDistribution
from slurm_gpu_aware.model.arrays import FloatArray, IntArray

REPEATS = 10
"""Of the random greedy."""
LATE_FACTOR = 2.0
"""Of a job that waits (rho; the paper gives no value)."""

Amount = Callable[[DueJob], float]


def longest(job: DueJob) -> float:
    """All the work that may be left."""
    return job.work.most - job.work.done


def average(job: DueJob) -> float:
    """Mean of all the work less what is done; at least 1 epoch."""
    return max(_mean(job.work.shape, job.work.most) - job.work.done, 1.0)


@lru_cache
def _mean(shape: Shape, most: float) -> float:
    return WorkDistribution(shape, 1.0, 0.0, 0.0, most).mean_left


def conditional(job: DueJob) -> float:
    """Mean of the work left, given what is done; not in the paper."""
    return job.work.mean_left


@dataclass(frozen=True)
class _Options:
    """The sizes of jobs that all have the same ones."""

    sizes: Sequence[tuple[str, float]]
    """(GPU model, GPUs) of each of the O options."""
    time_s: FloatArray
    """(jobs, O)."""
    cost: FloatArray
    """(jobs, O), energy."""
    late_s: FloatArray
    """(jobs, O), 0 in time."""
    late_cost: FloatArray
    """(jobs,) $ per s."""

    @classmethod
    def of(cls, jobs: Sequence[DueJob], amount: Amount, now: float) -> _Options:
        sizes = [(model, n) for model, s in jobs[0].speeds.items() for n in s.gpus.tolist()]
        known = [job.speeds.values() for job in jobs]
        work = np.array([[amount(job)] for job in jobs])
        time_s = work * [np.concatenate([s.unit_time for s in speeds]) for speeds in known]
        cost = work * [np.concatenate([s.unit_cost for s in speeds]) for speeds in known]
        late_s = np.maximum(time_s - [[job.due - now] for job in jobs], 0.0)
        return cls(sizes, time_s, cost, late_s, np.array([job.late_cost for job in jobs]))

    def by_cost(self, noise: FloatArray | float = 1.0) -> IntArray:
        """(jobs, O) order of the options: the cheapest that is in time, else the fastest."""
        key = np.where(self.late_s > 0, self.time_s, -1 / (self.cost * noise))
        return np.argsort(key, axis=1, kind="stable")

    def total(self, chosen: Sequence[int | None]) -> float:
        """Cost of all jobs with the options chosen; one that waits is faster, and later."""
        rows = np.arange(len(chosen))
        waits = np.array([option is None for option in chosen])
        fastest = self.time_s.argmin(axis=1)
        columns = np.where(waits, fastest, [option or 0 for option in chosen])
        late = self.late_cost * self.late_s[rows, columns]
        return float((self.cost[rows, columns] + np.where(waits, LATE_FACTOR, 1.0) * late).sum())


def _greedy(
    order: Sequence[int], turns: IntArray, options: _Options, free: FreeGpus
) -> tuple[dict[int, Share], list[int | None]]:
    """Job by job the first of its options that is free; (share of each job that has one, option).

    ``turns``: (jobs, O) the options of each job in their order.
    """
    shares: dict[int, Share] = {}
    chosen: list[int | None] = [None] * len(order)
    tried = turns.tolist()
    for job in order:
        if not free.any:
            break
        for option in tried[job]:
            share = free.best_fit(*options.sizes[option])
            if share is not None:
                free.take(share)
                shares[job], chosen[job] = share, option
                break
    return shares, chosen


def edf(amount: Amount, *, keeps: bool = False, fastest: bool = False) -> Scheduler:
    """Earliest due date first.

    ``keeps``: running jobs keep what they have, as published. ``fastest``: each job gets its
    fastest size that is free, whatever it costs.
    """

    def schedule(
        jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
    ) -> tuple[Shares, float]:
        free = FreeGpus(nodes)
        held = {job.job_id: job.held for job in jobs if keeps and job.held is not None}
        for share in held.values():
            free.take(share)
        ordered = sorted((j for j in jobs if j.job_id not in held), key=lambda job: job.due)
        if not ordered:
            return held, math.inf
        options = _Options.of(ordered, amount, now)
        turns = np.argsort(options.time_s, axis=1) if fastest else options.by_cost()
        started, _ = _greedy(range(len(ordered)), turns, options, free)
        return held | {ordered[n].job_id: share for n, share in started.items()}, math.inf

    return schedule


def random_greedy(amount: Amount, seed: int) -> Scheduler:
    """By pressure, repeated with random exchanges in the order and the costs; the best counts."""
    rng = np.random.default_rng(seed)

    def schedule(
        jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
    ) -> tuple[Shares, float]:
        options = _Options.of(jobs, amount, now)
        pressure = options.time_s.min(axis=1) - [job.due - now for job in jobs]
        spread = float(np.ptp(pressure))
        tried = []
        for repeat in range(REPEATS):
            moved = rng.normal(0, 0.1 * spread, len(jobs)) if repeat else 0.0
            noise = rng.uniform(0.9, 1.1, options.cost.shape) if repeat else 1.0
            order = np.argsort(-(pressure + moved), kind="stable").tolist()
            shares, chosen = _greedy(order, options.by_cost(noise), options, FreeGpus(nodes))
            tried.append((options.total(chosen), shares))
        best = min(tried, key=lambda found: found[0])[1]
        return {jobs[n].job_id: share for n, share in best.items()}, math.inf

    return schedule


def dynamic_programming(amount: Amount) -> Scheduler:
    """GPU counts that make the sum of completion times least, after Saxena et al.'s scaling.

    All that run end at now and the time of their work, so that the sum of these times is least.
    Times are convex in the number of GPUs here, so that the best step at a time finds the optimum
    of the dynamic programme. Running jobs come first, then those submitted first; each has at least
    one GPU, of the cheapest model that is free. Due dates and costs of energy are not looked at.
    """

    def schedule(
        jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
    ) -> tuple[Shares, float]:
        free = FreeGpus(nodes)
        shares: list[Share] = []
        gains: list[list[float]] = []
        names = []
        for job in sorted(jobs, key=lambda job: (job.held is None, int(job.job_id))):
            for model in sorted(job.speeds, key=lambda m: float(job.speeds[m].unit_cost[0])):
                if (share := free.best_fit(model, 1)) is not None:
                    free.take(share)
                    names.append(job.job_id)
                    shares.append(share)
                    gains.append((amount(job) * job.speeds[model].unit_gain).tolist()[::-1])
                    break
        steps = [(-gain.pop(), n) for n, gain in enumerate(gains)]
        heapify(steps)
        while steps:
            _, n = heappop(steps)
            if free.whole[shares[n].node]:
                free.give_back(shares[n])
                shares[n] = replace(shares[n], gpus=shares[n].gpus + 1)
                free.take(shares[n])
                if gains[n]:
                    heappush(steps, (-gains[n].pop(), n))
        return dict(zip(names, shares, strict=True)), math.inf

    return schedule
