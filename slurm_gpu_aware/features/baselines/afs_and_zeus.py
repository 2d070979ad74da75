"""Baselines of sizing: AFS-L (Hwang et al., NSDI'21), at default clocks, and the clocks of Zeus."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.features.power.menu import (
    Allocation,
    Sized,
    SizingJob,
    allocation,
    sized_at,
)
from slurm_gpu_aware.model.size_table import SizeTable, least_energy


def afs(
    jobs: Sequence[SizingJob],
    gpus: int,
    limit_w: float = math.inf,
    *,
    idle_w: float = 0.0,
) -> Allocation:
    """Shortest jobs first, then GPUs one step after another to the job that AFS-L prefers.

    Parameters as of `powerflow.allocate`. Of a job that ends sooner, with throughput p, and one
    that ends later, with q, the first gets the step if (p' - p) / p >= (q' - q) / q'; then the sum
    of both completion times is smaller if the later job gets the GPUs of the first one when that
    ends. Steps of several GPUs count per GPU. Growth stops at the limit. Time: O(jobs x steps).
    """
    offers = [sized_at(job, job.sizes[0], job.own_clock_mhz) for job in jobs]
    shortest = [
        replace(job, order=job.work * offer.time_s if offer.time_s > 0 else math.inf)
        for job, offer in zip(jobs, offers, strict=True)
    ]
    spare_w = limit_w - gpus * idle_w
    sized = _first_gpus(shortest, offers, gpus, spare_w, idle_w)
    free = gpus - sum(one.gpus for one in sized)
    spare_w -= sum(one.power_w - one.gpus * idle_w for one in sized)
    steps = {i: step for i, one in enumerate(sized) if (step := _step(jobs[i], one))}
    if any(one.waits_for == "power" for one in sized):
        steps = {}
    while steps := {i: step for i, step in steps.items() if step.gpus <= free}:
        i = _preferred(steps)
        step = steps.pop(i)
        if (more_w := step.to.power_w - sized[i].power_w - step.gpus * idle_w) > spare_w:
            break
        free, spare_w, sized[i] = free - step.gpus, spare_w - more_w, step.to
        if later := _step(jobs[i], step.to):
            steps[i] = later
    return allocation(jobs, sized, gpus, idle_w)


def _first_gpus(
    jobs: Sequence[SizingJob],
    offers: Sequence[Sized],
    gpus: int,
    spare_w: float,
    idle_w: float,
) -> list[Sized]:
    """What each job gets if it gets its offer or waits, in the order of the jobs.

    ``spare_w``: power above that of idle GPUs. A job without enough GPUs is left out; at the first
    one without enough power all later ones wait, as in `powerflow.allocate`. Jobs that must run
    come first.
    """
    found = list(offers)
    waits_for = ""
    for i in sorted(range(len(jobs)), key=lambda i: (not jobs[i].must_run, jobs[i].order)):
        more_w = offers[i].power_w - offers[i].gpus * idle_w
        if not jobs[i].must_run:
            fits = offers[i].gpus <= gpus
            if fits and more_w > spare_w:
                waits_for = "power"
            if waits_for or not fits:
                found[i] = Sized(0, waits_for="GPUs" if not fits else waits_for)
                continue
        gpus -= offers[i].gpus
        spare_w -= more_w
    return found


@dataclass(frozen=True)
class _Step:
    """The next larger size of a job that makes it faster."""

    to: Sized
    gpus: int  # GPUs added.
    length_s: float  # Time of the work that is left, before the step.
    speedup: float  # Throughput after the step over that before it.


def _step(job: SizingJob, now: Sized) -> _Step | None:
    """The next step of a job; None: none is known to make it faster, or it waits."""
    for size in job.sizes:
        if size > now.gpus > 0:
            to = sized_at(job, size, now.clock_mhz)
            if to.time_s < now.time_s:
                speedup = now.time_s / to.time_s
                return _Step(to, size - now.gpus, job.work * now.time_s, speedup)
    return None


def _preferred(steps: Mapping[int, _Step]) -> int:
    """The job that AFS-L prefers: the winner of comparisons in the order of the jobs."""
    order = iter(sorted(steps))
    best = next(order)
    for i in order:
        first, last = (best, i) if steps[best].length_s <= steps[i].length_s else (i, best)
        a, b = steps[first], steps[last]
        gain_first, gain_last = a.speedup - 1, 1 - 1 / b.speedup
        best = last if gain_last / b.gpus > gain_first / a.gpus else first
    return best


def zeus_clock(table: SizeTable, gpus: int, max_w: float, eta: float = 0.5) -> int | None:
    """SM clock of a job of ``gpus`` GPUs, MHz; None, the default clock, where nothing is known.

    Zeus (You et al., NSDI'23) chooses a power limit and a batch size; here the clock takes the
    place of the power limit, and the batch size stays. The cost of a unit of work is
    ``eta * energy + (1 - eta) * max_w * time``.

    Parameters: ``max_w``, power limits of all its GPUs together; ``eta``, weight of energy against
    time, 0 to 1 (0.5 is Zeus' own default).
    """
    row = table.row(gpus)
    if row is None:
        return None
    time_s, power_w = table.time_s[row], table.power_w[row]
    weighted_w = np.where(power_w > 0, eta * power_w + (1 - eta) * max_w, np.nan)
    best = least_energy(time_s, weighted_w)
    return None if best is None else int(table.clocks_mhz[best])
