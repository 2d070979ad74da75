"""A stretch of a site's history: the jobs to play again, and background jobs that hold GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

__all__ = ["BEFORE", "LEFT", "left_to_slurm", "stretch", "with_slots"]

BEFORE = "started before the days that were asked for"
LEFT = (
    "left to Slurm, as a number of GPUs that does not split evenly over the nodes; such a job is "
    "not modelled, its GPUs stay taken"
)
"""Under what the jobs of ``left_to_slurm`` are counted."""


def stretch(
    ended: Sequence[TraceJob],
    running: Sequence[TraceJob],
    *,
    now: float | None = None,
    seconds: float | None = None,
) -> tuple[list[TraceJob], list[TraceJob], Counter[str]]:
    """The jobs of the last ``seconds``, the background jobs, and counts of those left out.

    A job that started before the stretch begins, or still ran when it ends, is not played again:
    its start or its end lies outside. It holds its GPUs in every run from its recorded start to
    its recorded end, or to ``now``. A job that was waiting when the stretch begins arrives at its
    beginning.

    Parameters
    ----------
    ended, running : recorded jobs, times in Unix seconds; ``recorded_run_s`` of running ones is
        how long they have run.
    now : end of the stretch, Unix s; None: the latest time that was recorded.
    seconds : None: everything.

    Returns
    -------
    jobs, background : times in seconds from the beginning of the stretch, or from the first
        submission if there is none.
    left_out : reason -> jobs that are in neither or in the background.
    """
    left_out: Counter[str] = Counter()
    latest = now
    if latest is None:
        latest = max((_start(job) + _run(job) for job in (*ended, *running)), default=0.0)
    background = [replace(job, recorded_run_s=latest - _start(job)) for job in running]
    jobs = list(ended)
    begin = min((job.submit_s for job in ended), default=0.0)
    if seconds is not None:
        begin = latest - seconds
        jobs = [job for job in ended if _start(job) >= begin]
        background += [job for job in ended if _start(job) < begin]
        left_out[BEFORE] += len(ended) - len(jobs)
        jobs = [replace(job, submit_s=max(job.submit_s, begin)) for job in jobs]
    moved = [[_moved(job, begin) for job in group] for group in (jobs, background)]
    background = [job for job in moved[1] if _run(job) > 0 and _start(job) + _run(job) > 0]
    return moved[0], background, +left_out


def left_to_slurm(trace: Trace, cluster: Cluster) -> Trace:
    """The trace with the jobs that are left to Slurm moved to the background jobs.

    One GRES line for all nodes of a job cannot give them different numbers of GPUs: the filter
    leaves ``-N2 --gpus=3`` to Slurm, and so ``--gpus=5`` where nodes have 4, which needs two of
    them. They are counted in ``skipped`` under ``LEFT``. No job is moved if the cluster lets its
    nodes differ, or if the job ran on a node larger than any here.
    """
    widest = cluster.shape[1]

    def left(job: TraceJob) -> bool:
        nodes = job.nodes or -(-job.gpus // widest)
        elsewhere = job.gpus > max(nodes, len(job.recorded_nodes)) * widest
        if job.recorded_start_s is None or elsewhere or len(job.recorded_nodes) == 1:
            return False
        return job.gpus % nodes > 0

    apart = () if not cluster.same_indices else tuple(job for job in trace.jobs if left(job))
    if not apart:
        return trace
    names = {job.job_id for job in apart}
    return replace(
        trace,
        jobs=tuple(job for job in trace.jobs if job.job_id not in names),
        skipped={**trace.skipped, LEFT: len(apart)},
        background=(*trace.background, *apart),
    )


def with_slots(trace: Trace, given: Mapping[str, Mapping[str, Sequence[int]]]) -> Trace:
    """The trace with the GPUs that a ledger knows where the record of a job does not name them.

    ``given``: job id -> node -> indices (``Ledger.gpus_given``). A job is left as it is if its
    nodes are others (its number came round again), or if the indices differ between its nodes.
    """

    def known(job: TraceJob) -> TraceJob:
        nodes = given.get(job.job_id, {})
        slots = {tuple(sorted(indices)) for indices in nodes.values()}
        if job.recorded_slots or set(nodes) != set(job.recorded_nodes) or len(slots) != 1:
            return job
        (own,) = slots
        return replace(job, recorded_slots=own) if len(own) * len(nodes) == job.gpus else job

    jobs, held = ([known(job) for job in group] for group in (trace.jobs, trace.background))
    return replace(trace, jobs=tuple(jobs), background=tuple(held))


def _start(job: TraceJob) -> float:
    return job.recorded_start_s or 0.0


def _run(job: TraceJob) -> float:
    return job.recorded_run_s or 0.0


def _moved(job: TraceJob, by: float) -> TraceJob:
    """The job with times that count from ``by``."""
    return replace(job, submit_s=job.submit_s - by, recorded_start_s=_start(job) - by)
