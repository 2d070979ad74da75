"""Record of a site: as a run beside the simulated ones, and as the work that they replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.registry import SLURM
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.result import Mask, Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

__all__ = [
    "BASELINE",
    "KNOWLEDGE",
    "LIMITS",
    "RECORDED",
    "recorded_result",
    "with_work",
]

RECORDED = "as recorded"
BASELINE = SLURM
"""The policy that places as Slurm does. Gains are reported against it, because its difference from
the record is an error of the model."""
LIMITS = (
    "Any job may run on any GPU: partitions, GPU models, features, CPUs, memory and reservations "
    "are not modelled.",
    "Limits of users, accounts and QOS, preemption, nodes that were down, and failed jobs' lost "
    "work are not modelled: their cost is in the record alone.",
    "Priorities are those that Slurm recorded last; they do not change while a job waits.",
    "A job waits from the time at which it is eligible: dependencies, --begin and holds count in "
    "no run.",
    "Jobs that still run, or started before the history begins, hold their GPUs in every run and "
    "are not compared. So do jobs with GPUs that do not spread evenly over their nodes, because "
    "Slurm places them.",
    "Submission times are the recorded ones, even if earlier jobs of a user end sooner.",
)
"""Limits of a comparison with the record; sentences for users."""
KNOWLEDGE: Mapping[str, str] = {
    "exact": "ran on GPUs whose indices were recorded",
    "expected": "ran on known nodes, on GPUs that were not recorded",
    "unknown": "ran on nodes that this cluster does not have",
}
"""How well the slowdown of a recorded job is known -> the jobs of this kind."""


def with_work(
    trace: Trace, cluster: Cluster, truth: Mapping[str, FloatArray], settings: SimSettings
) -> tuple[Trace, Counter[str]]:
    """The trace with the work of its recorded jobs, and the number of jobs per ``KNOWLEDGE``.

    A recorded run time includes the slowdown of the GPUs that the job had. Its work is that time
    divided by L x max V (and the bandwidth factor), with the parts that ``settings`` switches on:

    - of the exact GPUs if the record has their indices (GRES types ``gK``);
    - else the expected slowdown over all sets of this many GPUs of the nodes, see
      ``Physics.expected``: right on average, not for a single job;
    - on nodes that the cluster lacks, V is 1, and L that of the loosest level if there are several
      nodes.

    Interference is not known and stays in the work.
    """
    physics = Physics(replace(cluster, scores={**cluster.scores, **truth}), settings)
    row = {name: i for i, name in enumerate(cluster.nodes) if cluster.exists[i].any()}
    known: Counter[str] = Counter()
    jobs = []
    for job in trace.jobs:
        if job.recorded_run_s is None:
            jobs.append(job)
            continue
        how, slowdown = _recorded_slowdown(job, physics, row)
        known[how] += 1
        jobs.append(replace(job, duration_s=job.recorded_run_s / slowdown))
    return replace(trace, jobs=tuple(jobs)), known


def _recorded_slowdown(
    job: TraceJob, physics: Physics, row: Mapping[str, int]
) -> tuple[str, float]:
    """A key of ``KNOWLEDGE``, and the slowdown of the job on its recorded GPUs."""
    nodes = sorted(row[name] for name in job.recorded_nodes if name in row)
    if not nodes or len(nodes) < len(job.recorded_nodes):
        several = len(job.recorded_nodes) > 1 and physics.settings.locality
        loosest = physics.cluster.levels[-1].of(job.app_class).value
        return "unknown", loosest if several else 1.0
    slots, exists = job.recorded_slots, physics.cluster.exists
    if slots and max(slots) < exists.shape[1] and exists[np.ix_(nodes, slots)].all():
        return "exact", physics.slowdown(job, nodes, [slots] * len(nodes))
    return "expected", physics.expected(job, nodes)


def recorded_result(trace: Trace, cluster: Cluster, among: Mask | None = None) -> Result:
    """A result from the recorded starts and run times of a trace.

    The GPUs in use are those of the jobs in the mask ``among`` (None: all) and of background jobs.
    Order and fragmentation are not known. Raises SourceError if a job has no recorded start.
    """
    jobs = trace.jobs
    if any(job.recorded_start_s is None for job in jobs):
        raise SourceError(f"{trace.name}: not a recorded history: jobs without a start time")
    start = np.array([job.recorded_start_s for job in jobs], dtype=np.float64)
    run = np.array([job.recorded_run_s or job.duration_s for job in jobs], dtype=np.float64)
    counted = [job for i, job in enumerate(jobs) if among is None or among[i]]
    users = [*counted, *trace.background]
    begin = np.array([job.recorded_start_s for job in users], dtype=np.float64)
    held_s = np.array([job.recorded_run_s or job.duration_s for job in users], dtype=np.float64)
    gpus = np.array([job.gpus for job in users], dtype=np.int64)
    times = np.maximum(np.concatenate([begin, begin + held_s]), 0.0)
    change = np.concatenate([gpus, -gpus])
    order = np.lexsort((change, times))  # ends first at equal times
    zeros = np.zeros(len(jobs), dtype=np.int64)
    return Result(
        trace=trace,
        settings=replace(SimSettings(), policy=RECORDED),
        total_gpus=int(cluster.exists.sum()),
        start_s=start,
        end_s=start + run,
        run_s=run,
        done_s=np.array([job.duration_s for job in jobs], dtype=np.float64),
        preemptions=zeros,
        migrations=zeros,
        infeasible=(),
        used_s=np.concatenate([[0.0], times[order]]),
        used_gpus=np.concatenate([[0], np.cumsum(change[order])]),
        fragmented_gpu_s=None,
        placement_ms=np.empty(0),
        recorded=True,
    )
