"""History of a site: a time window to replay, the work of its jobs, and the record as a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.policy import SLURM
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.result import Mask, Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

BEFORE = "started before the requested days"
UNSUPPORTED = (
    "unsupported, because their GPUs do not spread evenly over the nodes; such a job is not "
    "modelled and holds its GPUs at the recorded times"
)
"""Reason under which ``without_unsupported`` counts jobs."""
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
    "unknown": "ran on nodes that the record does not name or this cluster does not have",
}
"""How well the slowdown of a recorded job is known -> the jobs of this kind."""


def select_window(
    ended: Sequence[TraceJob],
    running: Sequence[TraceJob],
    *,
    now: float | None = None,
    seconds: float | None = None,
) -> tuple[list[TraceJob], list[TraceJob], Counter[str]]:
    """The jobs of the last ``seconds``, the background jobs, and reason -> number of others.

    A job that starts before the window or runs beyond it holds its GPUs in every run at its
    recorded times. A job that waits when the window begins arrives then.

    Parameters
    ----------
    ended, running : recorded jobs, times in Unix seconds; ``recorded_run_s`` of a running job is
        its run time so far.
    now : end of the window, Unix s; None: the latest recorded time.
    seconds : length of the window; None: everything. The result's times start with the window.
    """
    left_out: Counter[str] = Counter()
    ends = (_start(job) + _run(job) for job in (*ended, *running))
    latest = max(ends, default=0.0) if now is None else now
    background = [replace(job, recorded_run_s=latest - _start(job)) for job in running]
    jobs = list(ended)
    begin = min((job.submit_s for job in ended), default=0.0)
    if seconds is not None:
        begin = latest - seconds
        background += [job for job in ended if _start(job) < begin]
        jobs = [
            replace(job, submit_s=max(job.submit_s, begin)) for job in ended if _start(job) >= begin
        ]
        left_out[BEFORE] += len(ended) - len(jobs)
    jobs, background = (
        [
            replace(job, submit_s=job.submit_s - begin, recorded_start_s=_start(job) - begin)
            for job in group
        ]
        for group in (jobs, background)
    )
    holders = [job for job in background if _run(job) > 0 and _start(job) + _run(job) > 0]
    return jobs, holders, +left_out


def without_unsupported(trace: Trace, cluster: Cluster) -> Trace:
    """The trace with its unsupported jobs moved to the background jobs.

    One GRES line for all nodes of a job cannot give them different numbers of GPUs, so the filter
    leaves ``-N2 --gpus=3`` to Slurm, and also ``--gpus=5`` if nodes have 4 GPUs. ``skipped`` counts
    such jobs under ``UNSUPPORTED``. No job is moved if the cluster allows different indices per
    node, or if the job ran on a node larger than any of the cluster.
    """
    widest = cluster.shape[1]

    def unsupported(job: TraceJob) -> bool:
        nodes = job.nodes or -(-job.gpus // widest)
        elsewhere = job.gpus > max(nodes, len(job.recorded_nodes)) * widest
        if job.recorded_start_s is None or elsewhere or len(job.recorded_nodes) == 1:
            return False
        return job.gpus % nodes > 0

    apart = tuple(filter(unsupported, trace.jobs)) if cluster.same_indices else ()
    if not apart:
        return trace
    return replace(
        trace,
        jobs=tuple(filterfalse(unsupported, trace.jobs)),
        skipped={**trace.skipped, UNSUPPORTED: len(apart)},
        background=(*trace.background, *apart),
    )


def with_slots(trace: Trace, given: Mapping[str, Mapping[str, Sequence[int]]]) -> Trace:
    """The trace with the GPUs of the ledger for jobs whose record does not name them.

    ``given``: job id -> node -> indices (``Ledger.gpus_given``). A job stays unchanged if its
    nodes differ from those of the ledger (job ids repeat), or if the indices differ between nodes.
    """

    def with_own(job: TraceJob) -> TraceJob:
        nodes = given.get(job.job_id, {})
        slots = {tuple(sorted(indices)) for indices in nodes.values()}
        if job.recorded_slots or set(nodes) != set(job.recorded_nodes) or len(slots) != 1:
            return job
        (own,) = slots
        return replace(job, recorded_slots=own) if len(own) * len(nodes) == job.gpus else job

    jobs, background = map(with_own, trace.jobs), map(with_own, trace.background)
    return replace(trace, jobs=tuple(jobs), background=tuple(background))


def _start(job: TraceJob) -> float:
    return job.recorded_start_s or 0.0


def _run(job: TraceJob) -> float:
    return job.recorded_run_s or 0.0


def with_work(
    trace: Trace, cluster: Cluster, truth: Mapping[str, FloatArray], settings: SimSettings
) -> tuple[Trace, Counter[str]]:
    """The trace with the work of its recorded jobs, and the number of jobs per ``KNOWLEDGE``.

    A recorded run time includes the slowdown of the GPUs that the job had. Its work is that time
    divided by the slowdown (`Physics`) of the exact GPUs if the record has their indices, else by
    the expected one of its nodes. On nodes that the cluster lacks, V is 1, and L that of the
    loosest level if there are several. Interference is not known and stays in the work.
    """
    physics = Physics(replace(cluster, scores={**cluster.scores, **truth}), settings)
    row = {name: i for i, name in enumerate(cluster.nodes) if cluster.exists[i].any()}
    known: Counter[str] = Counter()
    jobs = list(trace.jobs)
    for i, job in enumerate(jobs):
        if job.recorded_run_s is not None:
            how, slowdown = _recorded_slowdown(job, physics, row)
            known[how] += 1
            jobs[i] = replace(job, duration_s=job.recorded_run_s / slowdown)
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

    The GPUs in use are those of the jobs in the mask ``among`` (None: all) and of background jobs,
    without jobs of less than a second: in whole seconds, such a job and the next one on its GPUs
    start together. Every job must have a recorded start.
    """
    jobs = trace.jobs
    users = [*jobs, *trace.background]
    start = np.array([job.recorded_start_s for job in users], dtype=np.float64)
    run = np.array([job.recorded_run_s or job.duration_s for job in users], dtype=np.float64)
    gpus = np.array([job.gpus for job in users], dtype=np.int64)
    counts = np.ones(len(users), dtype=np.bool_)
    if among is not None:
        counts[: len(jobs)] = among
    counts &= run >= 1.0
    times = np.maximum(np.concatenate([start[counts], (start + run)[counts]]), 0.0)
    change = np.concatenate([gpus[counts], -gpus[counts]])
    start, run = start[: len(jobs)], run[: len(jobs)]
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
        killed=np.zeros(len(jobs), dtype=np.bool_),
        recorded=True,
    )
