"""Schedulers that the stochastic scheduler is compared with: EDF, RG, DP.

Each decides anew for all jobs, from their longest times or, in the average-time variants, from
their mean times. Stops, moves and changes of size are free for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sts_simulation import Scheduler, Shares

from slurm_gpu_aware.sizing.free_gpus import DueNode, FreeGpus
from slurm_gpu_aware.sizing.speeds import Speeds
from slurm_gpu_aware.sizing.sts import DueJob

REPEATS = 10
"""Of the random greedy."""
LATE_FACTOR = 2.0
"""Of a job that waits (rho; the paper gives no value)."""


@dataclass(frozen=True)
class _Option:
    model: str
    gpus: float
    time_s: float
    cost: float
    """Energy."""


Amount = Callable[[DueJob], float]


def longest(job: DueJob) -> float:
    """All the work that may be left."""
    return job.work.most - job.work.done


def average(job: DueJob) -> float:
    """Mean of all the work less what is done; at least 1 epoch."""
    whole = replace(job.work, factor=1.0, offset=0.0, done=0.0)
    return max(whole.mean_left - job.work.done, 1.0)


def conditional(job: DueJob) -> float:
    """Mean of the work left, given what is done; not in the paper."""
    return job.work.mean_left


def _options(job: DueJob, amount: Amount) -> list[_Option]:
    work = amount(job)
    return [
        _Option(model, size, work * time, work * cost)
        for model, speeds in job.speeds.items()
        for size, time, cost in zip(
            speeds.gpus.tolist(),
            speeds.unit_time.tolist(),
            speeds.unit_cost.tolist(),
            strict=True,
        )
    ]


def _greedy(
    ordered: Sequence[tuple[DueJob, list[_Option]]],
    free: FreeGpus,
    now: float,
    rng: np.random.Generator | None = None,
) -> tuple[float, Shares]:
    """(cost, shares): job by job the cheapest that is in time, else the fastest that is free."""
    shares, total = {}, 0.0
    for job, options in ordered:
        noise = {id(o): 1.0 if rng is None else rng.uniform(0.9, 1.1) for o in options}
        left = job.due - now
        good = sorted((o for o in options if o.time_s <= left), key=lambda o: o.cost * noise[id(o)])
        rest = sorted((o for o in options if o.time_s > left), key=lambda o: o.time_s)
        for option in [*good, *rest] if free.any else ():
            share = free.best_fit(option.model, option.gpus)
            if share is not None:
                free.take(share)
                shares[job.job_id] = share
                total += option.cost + job.late_cost * max(option.time_s - left, 0.0)
                break
        else:
            best = min(options, key=lambda o: o.time_s)
            total += best.cost + LATE_FACTOR * job.late_cost * max(best.time_s - left, 0.0)
    return total, shares


def edf(amount: Amount, *, keeps: bool = False) -> Scheduler:
    """Earliest due date first. ``keeps``: running jobs keep what they have, as in Slurm."""

    def schedule(
        jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
    ) -> tuple[Shares, float]:
        free = FreeGpus(nodes)
        held = {job.job_id: job.held for job in jobs if keeps and job.held is not None}
        for share in held.values():
            free.take(share)
        ordered = sorted((j for j in jobs if j.job_id not in held), key=lambda job: job.due)
        started = _greedy([(job, _options(job, amount)) for job in ordered], free, now)[1]
        return {**held, **started}, math.inf

    return schedule


def random_greedy(amount: Amount, seed: int) -> Scheduler:
    """By pressure, repeated with random exchanges in the order and the costs; the best counts."""
    rng = np.random.default_rng(seed)

    def schedule(
        jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
    ) -> tuple[Shares, float]:
        known = [(job, _options(job, amount)) for job in jobs]
        pressure = [now + min(o.time_s for o in options) - job.due for job, options in known]
        spread = float(np.ptp(pressure)) if len(pressure) > 1 else 0.0
        tried = []
        for repeat in range(REPEATS):
            noise = rng.normal(0, 0.1 * spread, len(known)) if repeat else np.zeros(len(known))
            order = np.argsort(-(np.array(pressure) + noise), kind="stable")
            tried.append(
                _greedy([known[i] for i in order], FreeGpus(nodes), now, rng if repeat else None)
            )
        return min(tried, key=lambda found: found[0])[1], math.inf

    return schedule


def dynamic_programming(amount: Amount) -> Scheduler:
    """GPU counts that make the sum of the times least, after Saxena et al.'s elastic scaling.

    Times are convex in the number of GPUs here, so that the best step at a time finds the optimum
    of the dynamic programme. Running jobs come first, then those submitted first; each has at least
    one GPU, of the cheapest model that is free. Due dates and costs of energy are not looked at.
    """

    def schedule(
        jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
    ) -> tuple[Shares, float]:
        free, shares = FreeGpus(nodes), {}
        first = sorted(jobs, key=lambda job: (job.held is None, int(job.job_id)))
        models: dict[str, str] = {}
        for job in first:
            for option in sorted(_options(job, amount), key=lambda o: o.cost):
                if option.gpus == 1 and (share := free.best_fit(option.model, 1)) is not None:
                    free.take(share)
                    shares[job.job_id], models[job.job_id] = share, option.model
                    break
        gains = {
            job.job_id: _gains(job.speeds[models[job.job_id]], amount(job))
            for job in first
            if job.job_id in shares
        }
        while gains := {n: g for n, g in gains.items() if g and free.whole[shares[n].node]}:
            name = max(gains, key=lambda n: gains[n][0])
            share = shares[name]
            shares[name] = replace(share, gpus=share.gpus + 1)
            free.give_back(share)
            free.take(shares[name])
            del gains[name][0]
        return shares, math.inf

    return schedule


def _gains(speeds: Speeds, amount: float) -> list[float]:
    """Time saved by each GPU after the first one."""
    gains: list[float] = (amount * speeds.unit_gain[speeds.gpus[:-1] >= 1]).tolist()
    return gains
