"""Clocks by marginal return: which jobs get a faster clock for the power that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.features.power.allocation import SizingJob
from slurm_gpu_aware.features.power.ladder import Ladder
from slurm_gpu_aware.features.power.menu import gathered
from slurm_gpu_aware.model.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Clocks:
    """Clocks of the jobs that have GPUs."""

    ladders: Mapping[int, Ladder]
    """Index of the job -> its clocks at its size."""
    rungs: IntArray
    """(J,) rung of each job; 0 for one without GPUs."""
    left_uw: int
    """Power that whole steps leave."""
    complete: bool
    """The power was enough for all steps."""

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
