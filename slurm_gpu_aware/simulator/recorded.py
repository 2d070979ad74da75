"""What Slurm did, in the form of a run: recorded starts and ends instead of simulated ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_gpu_aware.cluster import Cluster
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace

__all__ = ["RECORDED", "recorded_result"]

RECORDED = "as recorded"


def recorded_result(trace: Trace, cluster: Cluster) -> Result:
    """A result from a trace's recorded start times; GPUs are counted, not placed.

    Raises SourceError if a job has no recorded start.
    """
    jobs = trace.jobs
    if any(job.recorded_start_s is None for job in jobs):
        raise SourceError(f"{trace.name}: not a recorded history: jobs without a start time")
    start = np.array([job.recorded_start_s for job in jobs], dtype=np.float64)
    run = np.array([job.duration_s for job in jobs], dtype=np.float64)
    gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
    times = np.concatenate([start, start + run])
    change = np.concatenate([gpus, -gpus])
    order = np.argsort(times, kind="stable")
    zeros = np.zeros(len(jobs), dtype=np.int64)
    return Result(
        trace=trace,
        settings=replace(SimSettings(), policy=RECORDED),
        total_gpus=int(cluster.exists.sum()),
        start_s=start,
        end_s=start + run,
        run_s=run,
        preemptions=zeros,
        migrations=zeros,
        never=(),
        used_s=np.concatenate([[0.0], times[order]]),
        used_gpus=np.concatenate([[0], np.cumsum(change[order])]),
        fragmented_gpu_s=0.0,
        placement_ms=np.empty(0),
    )
