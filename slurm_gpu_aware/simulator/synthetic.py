"""Synthetic traces: Poisson arrivals, with the sizes and durations of large shared clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slurm_gpu_aware.bounds import MAX_TIME_S
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

__all__ = ["SIZES", "poisson_trace"]

SIZES: Mapping[int, float] = {1: 0.70, 2: 0.09, 4: 0.12, 8: 0.06, 16: 0.03}
"""GPU count -> share of the jobs: mostly one GPU, powers of two, as in the Philly trace."""


def poisson_trace(
    jobs: int,
    per_hour: float,
    *,
    seed: int = 0,
    sizes: Mapping[int, float] = SIZES,
    classes: Sequence[str] = ("A", "B", "C"),
) -> Trace:
    """A trace with exponential gaps between arrivals.

    Durations follow Synergy's recipe (Mohan et al., OSDI'22, section 5.1): 60 x 10^u seconds, u
    uniform in 1.5..3 for 80% of the jobs and in 3..4 for the rest. Classes are equally likely, and
    half of the jobs are bandwidth sensitive.

    Raises SourceError for a count or a rate that is not positive.
    """
    if jobs < 1 or not per_hour > 0:
        raise SourceError("a synthetic trace needs at least one job and a rate above 0 per hour")
    rng = np.random.default_rng(seed)
    if not 3600.0 / per_hour * jobs <= MAX_TIME_S / 10:  # a margin, because gaps are random
        raise SourceError(f"{jobs} jobs at {per_hour:g} per hour would take more than 30 years")
    submit = np.cumsum(rng.exponential(3600.0 / per_hour, size=jobs))
    shares = np.array(list(sizes.values()))
    gpus = rng.choice(list(sizes), size=jobs, p=shares / shares.sum())
    short = rng.random(jobs) < 0.8
    exponent = np.where(short, rng.uniform(1.5, 3.0, jobs), rng.uniform(3.0, 4.0, jobs))
    kinds = rng.integers(len(classes), size=jobs)
    sensitive = rng.random(jobs) < 0.5
    made = [
        TraceJob(
            job_id=str(i),
            submit_s=float(submit[i]),
            gpus=int(gpus[i]),
            duration_s=float(60.0 * 10.0 ** exponent[i]),
            app_class=classes[int(kinds[i])],
            bandwidth_sensitive=bool(sensitive[i]),
        )
        for i in range(jobs)
    ]
    return Trace.of(f"synthetic: {jobs} jobs, {per_hour:g} per hour, seed {seed}", made)
