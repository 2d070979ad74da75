"""Zeus: for each job alone, the clock with the least weighted cost of energy and time.

Zeus (You et al., NSDI'23) chooses a power limit and a batch size; here the clock takes the place of
the power limit, and the batch size stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_gpu_aware.sizing.allocation import Allocation, Sized, SizingJob, allocation, sized_at
from slurm_gpu_aware.sizing.as_asked import first_gpus

__all__ = ["zeus"]


def zeus(
    jobs: Sequence[SizingJob],
    gpus: int,
    limit_w: float = math.inf,
    *,
    idle_w: float = 0.0,
    gpus_per_node: int = 1,
    eta: float = 0.5,
) -> Allocation:
    """Sizes as asked, each job at its own optimum. Other parameters as of `powerflow.allocate`.

    ``eta``: weight of energy against time, 0 to 1; Zeus' own default is 0.5. The cost of a unit of
    work is ``eta * energy + (1 - eta) * max_w * time``.
    """
    offers = [_best(job, eta) for job in jobs]
    sized = first_gpus(jobs, offers, gpus, limit_w - gpus * idle_w, idle_w)
    return allocation(jobs, sized, gpus, idle_w, gpus_per_node)


def _best(job: SizingJob, eta: float) -> Sized:
    row = job.table.row(job.sizes[0]) if job.table is not None else None
    if job.table is None or row is None or job.clocks_mhz is not None:
        return sized_at(job, job.sizes[0], job.own_clock_mhz)
    time_s, power_w = job.table.time_s[row], job.table.power_w[row]
    cost = (eta * power_w + (1 - eta) * job.max_w) * time_s
    cost[~(np.isfinite(cost) & (time_s > 0) & (power_w > 0))] = math.inf
    best = int(np.argmin(cost))
    clock = int(job.table.clocks_mhz[best]) if math.isfinite(cost[best]) else job.own_clock_mhz
    return sized_at(job, job.sizes[0], clock)
