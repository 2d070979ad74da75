"""PowerFlow: GPUs and clocks by marginal return under a power limit (Gu et al., Algorithm 1).

One sequence of steps serves a cluster whose jobs are all sized anew, as in the paper, and a live
one: clocks of jobs that must run, up to their most efficient ones; the first GPUs of the waiting
jobs; more GPUs by marginal return; then clocks by marginal return. What differs is in the jobs:
a running job that keeps its GPUs has one size, and Slurm's order is the jobs' order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_gpu_aware.features.power.allocation import Allocation, Sized, SizingJob, allocation
from slurm_gpu_aware.features.power.clocks import Clocks, lowest_clocks_first, raised_clocks
from slurm_gpu_aware.features.power.ladder import MICRO, microwatts
from slurm_gpu_aware.features.power.menu import GpuSteps, gpu_steps, menus

NO_LIMIT_UW = 1 << 62
TRIED_ALL = 64
"""Up to this many growth steps, clocks are tried after each number of them."""
TRIED = 8
"""Of more, after so many numbers of them."""


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

    A sort takes the place of the paper's heaps: returns of a job only fall (`ladder.Steps`), so
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
