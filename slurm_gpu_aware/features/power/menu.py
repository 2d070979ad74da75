"""Menus: the sizes that are worth having, per job, and the sequence of steps from GPU to GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.features.power.allocation import SizingJob
from slurm_gpu_aware.features.power.ladder import (
    MICRO,
    Ladder,
    Steps,
    clock_ladder,
    least_ladder,
    steps,
)
from slurm_gpu_aware.model.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Menu:
    """Sizes of a job, each faster than the smaller ones, all at their most efficient clocks."""

    sizes: tuple[int, ...]
    ladders: tuple[Ladder, ...]
    """Clocks of each size."""
    power_uw: IntArray
    """(S,) power of each size, without that of its GPUs when idle."""
    growth: Steps
    """Steps from the least size up; a rung is an index of ``sizes``."""
    first_j: float
    """Energy of a unit of work at the least size; inf: not known."""


@dataclass(frozen=True, eq=False)
class GpuSteps:
    """Steps that give GPUs, in their order; it does not depend on any power limit."""

    job: IntArray
    """(K,) index of the job."""
    size: IntArray
    """(K,) index of its new size in its menu."""
    spent_uw: IntArray
    """(K,) power after the step, less that before the first one."""
    gpus: IntArray
    """(K,) GPUs in use after the step."""
    first: int
    """The first so many steps start a job, the others let one grow."""

    def sizes_after(self, count: int) -> dict[int, int]:
        """Job -> index of its size after the first ``count`` steps."""
        return dict(zip(self.job[:count].tolist(), self.size[:count].tolist(), strict=True))

    def spent_after(self, count: int) -> int:
        """Power of the first ``count`` steps, µW."""
        return int(self.spent_uw[count - 1]) if count else 0


def menus(jobs: Sequence[SizingJob], idle_uw: int) -> list[Menu]:
    """Menu of each job; jobs that have the same table and choice share one."""
    known: dict[object, Menu] = {}
    found = []
    for job in jobs:
        key = (id(job.table), job.sizes, job.clocks_mhz, job.max_w)
        if key not in known:
            known[key] = _menu(job, idle_uw)
        found.append(known[key])
    return found


def _menu(job: SizingJob, idle_uw: int) -> Menu:
    sizes, ladders = [job.sizes[0]], [least_ladder(job)]
    for gpus in job.sizes[1:]:
        ladder = clock_ladder(job, gpus)
        if ladder is not None and ladder.efficient_s < ladders[-1].efficient_s:
            sizes.append(gpus)
            ladders.append(ladder)
    times = np.array([ladder.efficient_s for ladder in ladders])
    power_uw = np.array([ladder.efficient_uw for ladder in ladders]) - idle_uw * np.array(sizes)
    growth = steps(times, power_uw, 0, len(sizes) - 1)
    energy = ladders[0].efficient_s * ladders[0].efficient_uw / MICRO
    first_j = energy if math.isfinite(energy) else math.inf
    return Menu(tuple(sizes), tuple(ladders), power_uw, growth, first_j)


def gpu_steps(jobs: Sequence[SizingJob], offers: Sequence[Menu], gpus: int) -> GpuSteps:
    """First GPUs of the waiting jobs, then more GPUs by return, as far as ``gpus`` go.

    Jobs that must run have their least size already. First come steps that shorten a job at no
    cost, by time, then the others by time per power. Of a step for which GPUs are missing, the part
    is taken for which there are enough.
    """
    in_use = sum(job.sizes[0] for job in jobs if job.must_run)
    taken: list[tuple[int, int, int, int]] = []
    spent = 0
    placed = [i for i, job in enumerate(jobs) if job.must_run]
    waiting = [i for i, job in enumerate(jobs) if not job.must_run]
    for i in sorted(waiting, key=lambda i: (jobs[i].order, offers[i].first_j)):
        if in_use + jobs[i].sizes[0] <= gpus:
            in_use += jobs[i].sizes[0]
            spent += int(offers[i].power_uw[0])
            taken.append((i, 0, spent, in_use))
            placed.append(i)
    first = len(taken)
    size = dict.fromkeys(placed, 0)
    owner, to = _by_return(jobs, offers, sorted(placed))
    for i, rung in zip(owner.tolist(), to.tolist(), strict=True):
        held = offers[i].sizes[size[i]]
        while rung > size[i] and in_use + offers[i].sizes[rung] - held > gpus:
            rung -= 1
        if rung > size[i]:
            in_use += offers[i].sizes[rung] - held
            spent += int(offers[i].power_uw[rung] - offers[i].power_uw[size[i]])
            size[i] = rung
            taken.append((i, rung, spent, in_use))
    job, to_size, spent_uw, gpus_after = np.array(taken, dtype=np.int64).reshape(-1, 4).T
    return GpuSteps(job, to_size, spent_uw, gpus_after, first)


def _by_return(
    jobs: Sequence[SizingJob], offers: Sequence[Menu], placed: Sequence[int]
) -> tuple[IntArray, IntArray]:
    """(job, rung) of all growth steps, best return first; steps of a job keep their order."""
    owner, to, gain, cost = gathered({i: offers[i].growth for i in placed}, jobs)
    paid = cost > 0
    returns = np.divide(gain, cost, out=gain.copy(), where=paid)
    order = np.lexsort((-returns, paid))
    return owner[order], to[order]


def gathered(
    of: dict[int, Steps], jobs: Sequence[SizingJob]
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """(job, rung, gain in the work left, cost) of all steps of some jobs, in the order given."""
    if not of:
        none = np.empty(0, dtype=np.int64)
        return none, none, np.empty(0), none
    counts = [len(s.to) for s in of.values()]
    owner = np.repeat(np.fromiter(of, dtype=np.int64), counts)
    work = np.repeat(np.array([jobs[i].work for i in of]), counts)
    gain = np.concatenate([s.gain for s in of.values()]) * work
    to = np.concatenate([s.to for s in of.values()])
    return owner, to, gain, np.concatenate([s.cost for s in of.values()])
