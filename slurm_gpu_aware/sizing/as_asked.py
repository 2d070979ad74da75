"""Sizes as asked: what schedulers without elastic jobs do (Gandiva, Tiresias).

A job gets its least size, which is what it asked for, in the order of the jobs. Gandiva (Xiao et
al., OSDI'18) and Tiresias (Gu et al., NSDI'19) differ in that order and in placement, and neither
knows clocks: Tiresias orders by attained service, Gandiva packs and slices time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu_aware.sizing.allocation import Allocation, Sized, SizingJob, allocation, sized_at

__all__ = ["as_asked", "first_gpus"]


def as_asked(
    jobs: Sequence[SizingJob],
    gpus: int,
    limit_w: float = math.inf,
    *,
    idle_w: float = 0.0,
    gpus_per_node: int = 1,
) -> Allocation:
    """Sizes as asked, at fixed or default clocks. Parameters as of `powerflow.allocate`."""
    offers = [sized_at(job, job.sizes[0], job.own_clock_mhz) for job in jobs]
    sized = first_gpus(jobs, offers, gpus, limit_w - gpus * idle_w, idle_w)
    return allocation(jobs, sized, gpus, idle_w, gpus_per_node)


def first_gpus(
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
