"""PowerFlow: GPUs and clocks by marginal return under a power limit (Gu et al., Algorithm 1).

One sequence of steps serves a cluster whose jobs are all sized anew, as in the paper, and a live
one: clocks of jobs that must run, up to their most efficient ones; the first GPUs of the waiting
jobs; more GPUs by marginal return; then clocks by marginal return. What differs is in the jobs:
a running job that keeps its GPUs has one size, and Slurm's order is the jobs' order.

Clocks by marginal return: which jobs get a faster clock for the power that is left.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.features.power.menu import (
    MICRO,
    Allocation,
    GpuSteps,
    Ladder,
    Sized,
    SizingJob,
    allocation,
    gathered,
    gpu_steps,
    menus,
    microwatts,
)
from slurm_gpu_aware.model.arrays import IntArray

NO_LIMIT_UW = 1 << 62
TRIED_ALL = 64  # Up to this many growth steps, clocks are tried after each number of them.
TRIED = 8  # Of more, after so many numbers of them.


@dataclass(frozen=True, eq=False)
class Clocks:
    """Clocks of the jobs that have GPUs."""

    ladders: Mapping[int, Ladder]  # Index of the job -> its clocks at its size.
    rungs: IntArray  # (J,) rung of each job; 0 for one without GPUs.
    left_uw: int  # Power that whole steps leave.
    complete: bool  # The power was enough for all steps.

    def time_s(self, jobs: Sequence[SizingJob]) -> float:
        """Time of the work that is left, summed over the jobs whose time is known."""
        return sum(
            jobs[i].work * t
            for i, ladder in self.ladders.items()
            if (t := float(ladder.time_s[self.rungs[i]])) == t
        )


def lowest_clocks_first(
    jobs: Sequence[SizingJob], ladders: Mapping[int, Ladder], power_uw: int
) -> Clocks:
    """Clocks from the lowest up to the most efficient ones, as far as the power goes."""
    start = np.zeros(len(jobs), dtype=np.int64)
    left = power_uw - sum(int(ladder.power_uw[0]) for ladder in ladders.values())
    return _raised(jobs, Clocks(ladders, start, left, complete=False), above=False)


def raised_clocks(jobs: Sequence[SizingJob], ladders: Mapping[int, Ladder], left_uw: int) -> Clocks:
    """Clocks above the most efficient ones, as far as the power that is left goes."""
    start = np.zeros(len(jobs), dtype=np.int64)
    for i, ladder in ladders.items():
        start[i] = ladder.efficient
    return _raised(jobs, Clocks(ladders, start, left_uw, complete=False), above=True)


def _raised(jobs: Sequence[SizingJob], clocks: Clocks, *, above: bool) -> Clocks:
    """Take steps by return until one does not fit; of that one, the part that does."""
    ladders = clocks.ladders
    owner, to, gain, cost = gathered(
        {i: ladder.above if above else ladder.below for i, ladder in ladders.items()}, jobs
    )
    order = np.argsort(-gain / cost, kind="stable")
    spent = np.cumsum(cost[order])
    taken = int(np.searchsorted(spent, clocks.left_uw, side="right"))
    rungs = clocks.rungs.copy()
    rungs[owner[order[:taken]]] = to[order[:taken]]
    left = clocks.left_uw - (int(spent[taken - 1]) if taken else 0)
    complete = left >= 0 and taken == len(order)
    if left > 0 and not complete:
        job = int(owner[order[taken]])
        power_uw = ladders[job].power_uw
        now = int(power_uw[rungs[job]])
        rungs[job] = np.searchsorted(power_uw, now + left, side="right") - 1
    return Clocks(ladders, rungs, left, complete)


def allocate(
    jobs: Sequence[SizingJob],
    gpus: int,
    limit_w: float = math.inf,
    *,
    idle_w: float = 0.0,
    gpus_per_node: int = 1,
    whole_nodes: bool = False,
) -> Allocation:
    """GPUs and clock of each job, so that all together draw at most ``limit_w``.

    Parameters
    ----------
    jobs : the jobs; with all ``order`` equal the first GPUs go to the least energy first.
    gpus : GPUs for these jobs, those of jobs that must run included.
    limit_w : limit for all these GPUs, idle ones included, W; inf: none.
    idle_w : power of one GPU without a job, W.
    gpus_per_node : for ``whole_nodes``.
    whole_nodes : growth stops only where the next step would open another node, as in the paper;
        otherwise each step is tested by itself.

    Notes
    -----
    The limit is exceeded only if the jobs that must run exceed it at their lowest clocks.

    The order of the steps does not depend on the limit, which only ends it, at the first step that
    does not fit. So a higher limit starts the same jobs, and perhaps more; if it starts the same,
    the sum of ``work * time_s`` is not longer. For that, the number of growth steps is chosen
    together with the clocks that it leaves power for: the paper's order, first GPUs and then
    clocks, spends power on GPUs that bring little.

    A sort takes the place of the paper's heaps: returns of a job only fall (`menu.Steps`), so
    that both take the steps in the same order.
    """
    idle_uw = microwatts(idle_w)
    offers = menus(jobs, idle_uw)
    sequence = gpu_steps(jobs, offers, gpus)
    running = {i: offers[i].ladders[0] for i, job in enumerate(jobs) if job.must_run}
    budget = NO_LIMIT_UW if limit_w >= NO_LIMIT_UW / MICRO else math.floor(MICRO * limit_w)
    unused = gpus - sum(jobs[i].sizes[0] for i in running)
    clocks = lowest_clocks_first(jobs, running, budget - unused * idle_uw)
    size = dict.fromkeys(running, 0)
    if clocks.complete:
        left = clocks.left_uw
        fits = int(np.argmax(np.append(sequence.spent_uw > left, True)))
        least_s = math.inf
        for count, raises in _numbers(sequence, fits, gpus_per_node if whole_nodes else 1):
            grown = dict.fromkeys(running, 0) | sequence.sizes_after(count)
            ladders = {i: offers[i].ladders[n] for i, n in grown.items()}
            power_uw = left - sequence.spent_after(count) if raises else 0
            tried = raised_clocks(jobs, ladders, power_uw)
            if (time_s := tried.time_s(jobs)) < least_s:
                least_s, clocks, size = time_s, tried, grown
    startable = set(sequence.job[: sequence.first].tolist())
    sized = [
        _sized(clocks, i, offers[i].sizes[size[i]])
        if i in size
        else Sized(0, waits_for="power" if i in startable else "GPUs")
        for i in range(len(jobs))
    ]
    return allocation(jobs, sized, gpus, idle_w)


def _numbers(sequence: GpuSteps, fits: int, block: int) -> list[tuple[int, bool]]:
    """(number of steps, whether clocks rise after them) to try, of ``fits`` that power allows.

    What is tried at one limit is tried at each higher one, or something better: so the best of
    them is never worse at a higher limit.
    """
    if fits <= sequence.first:
        return [(fits, True)]
    opens = np.flatnonzero(np.diff(-(-sequence.gpus // block)) > 0) + 1
    ends = [sequence.first, len(sequence.job)]
    stops = np.unique(np.append(opens[opens > sequence.first], ends))
    within = stops[stops <= fits]
    if len(stops) <= TRIED_ALL:
        return [(int(n), True) for n in within]
    some = stops[np.linspace(0, len(stops) - 1, TRIED).astype(int)]
    return [(int(within[-1]), False)] + [(int(n), True) for n in some[some <= fits]]


def _sized(clocks: Clocks, job: int, gpus: int) -> Sized:
    ladder, rung = clocks.ladders[job], clocks.rungs[job]
    return Sized(
        gpus,
        ladder.clocks_mhz[rung],
        float(ladder.time_s[rung]),
        int(ladder.power_uw[rung]) / MICRO,
    )
