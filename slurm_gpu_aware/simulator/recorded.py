"""Record of the site: as a run beside the simulated ones, and as work that these do again."""

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
"""The policy that places as Slurm does. Gains are told against it: the difference between it and
the record is the model's."""
LIMITS = (
    "Any job may run on any GPU: partitions, GPU models, features, CPUs, memory and reservations "
    "are not modelled.",
    "Limits of users, accounts and QOS, preemption, nodes that were down, and failed jobs' lost "
    "work are not modelled: what they cost is in the record alone.",
    "Priorities are those that Slurm recorded last; they do not change while a job waits.",
    "A job waits from when it was eligible: dependencies, --begin and holds count in no run.",
    "Jobs that still run, or ran before the history begins, hold their GPUs in every run and are "
    "not compared; so do jobs whose GPUs do not split evenly over their nodes, because placing "
    "them is left to Slurm.",
    "Users submit when they did, also where their jobs would have ended sooner.",
)
"""Limits of a comparison with the record; sentences for people."""
KNOWLEDGE: Mapping[str, str] = {
    "exact": "ran on GPUs whose indices were recorded",
    "expected": "ran on known nodes, on GPUs that were not recorded",
    "unknown": "ran on nodes that this cluster does not have",
}
"""How well the slowdown of a recorded job is known."""


def with_work(
    trace: Trace, cluster: Cluster, truth: Mapping[str, FloatArray], settings: SimSettings
) -> tuple[Trace, Counter[str]]:
    """The trace with the work of its recorded jobs, and how many there are per ``KNOWLEDGE``.

    A recorded run time already holds the slowdown of the GPUs that the job had. Its work is that
    time divided by L x max V (and the bandwidth factor) of the recorded nodes, with the parts that
    ``settings`` switches on:

    - exact indices where the record has them (GRES types ``gK``);
    - else the expected slowdown over all sets of so many GPUs of these nodes, see
      ``Physics.expected``: right on average, not for the single job;
    - on nodes that the cluster does not have V counts as 1, and L as that of its loosest level if
      there are several.

    The cost of neighbours is not known and stays in the work.
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
    """A key of ``KNOWLEDGE``, and the slowdown of the job where it ran."""
    nodes = sorted(row[name] for name in job.recorded_nodes if name in row)
    if not nodes or len(nodes) < len(job.recorded_nodes):
        several = len(job.recorded_nodes) > 1 and physics.settings.locality
        loosest = physics.cluster.levels[-1].of(job.app_class).value
        return "unknown", loosest if several else 1.0
    slots, exists = job.recorded_slots, physics.cluster.exists
    if slots and max(slots) < exists.shape[1] and exists[np.ix_(nodes, slots)].all():
        return "exact", physics.on(job, nodes, [slots] * len(nodes))
    return "expected", physics.expected(job, nodes)


def recorded_result(trace: Trace, cluster: Cluster, among: Mask | None = None) -> Result:
    """A result from a trace's recorded starts and run times; GPUs are counted, not placed.

    Counted are those of the jobs ``among`` a mask (None: all) and of background jobs.
    Order and fragmentation stay open: they were not recorded.
    Raises SourceError if a job has no recorded start.
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
    order = np.lexsort((change, times))  # of one time, ends first
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
        never=(),
        used_s=np.concatenate([[0.0], times[order]]),
        used_gpus=np.concatenate([[0], np.cumsum(change[order])]),
        fragmented_gpu_s=None,
        placement_ms=np.empty(0),
        recorded=True,
    )
