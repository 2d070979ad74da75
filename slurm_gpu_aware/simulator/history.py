"""Time window of a site's history: the jobs to replay, and background jobs that hold GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

__all__ = ["BEFORE", "UNSUPPORTED", "select_window", "with_slots", "without_unsupported"]

BEFORE = "started before the requested days"
UNSUPPORTED = (
    "unsupported, because their GPUs do not spread evenly over the nodes; such a job is not "
    "modelled and holds its GPUs at the recorded times"
)
"""Reason under which ``without_unsupported`` counts jobs."""


def select_window(
    ended: Sequence[TraceJob],
    running: Sequence[TraceJob],
    *,
    now: float | None = None,
    seconds: float | None = None,
) -> tuple[list[TraceJob], list[TraceJob], Counter[str]]:
    """The jobs of the last ``seconds``, the background jobs, and counts of jobs left out.

    A job that starts before the window or runs beyond it is not replayed. It holds its GPUs in
    every run from its recorded start to its recorded end, or to ``now``. A job that waits when the
    window begins arrives at its beginning.

    Parameters
    ----------
    ended, running : recorded jobs, times in Unix seconds; ``recorded_run_s`` of a running job is
        its run time so far.
    now : end of the window, Unix s; None: the latest recorded time.
    seconds : length of the window; None: everything.

    Returns
    -------
    jobs, background : times in seconds from the beginning of the window, or from the first
        submission without ``seconds``.
    left_out : reason -> number of jobs that are not replayed.
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


def without_unsupported(trace: Trace, cluster: Cluster) -> Trace:
    """The trace with its unsupported jobs moved to the background jobs.

    One GRES line for all nodes of a job cannot give them different numbers of GPUs. The filter
    therefore leaves ``-N2 --gpus=3`` to Slurm, and also ``--gpus=5`` if nodes have 4 GPUs. Such
    jobs are counted in ``skipped`` under ``UNSUPPORTED``. No job is moved if the cluster allows
    different indices per node, or if the job ran on a node larger than any of the cluster.
    """
    widest = cluster.shape[1]

    def unsupported(job: TraceJob) -> bool:
        nodes = job.nodes or -(-job.gpus // widest)
        elsewhere = job.gpus > max(nodes, len(job.recorded_nodes)) * widest
        if job.recorded_start_s is None or elsewhere or len(job.recorded_nodes) == 1:
            return False
        return job.gpus % nodes > 0

    moved = () if not cluster.same_indices else tuple(filter(unsupported, trace.jobs))
    if not moved:
        return trace
    names = {job.job_id for job in moved}
    return replace(
        trace,
        jobs=tuple(job for job in trace.jobs if job.job_id not in names),
        skipped={**trace.skipped, UNSUPPORTED: len(moved)},
        background=(*trace.background, *moved),
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

    jobs, background = (
        tuple(with_own(job) for job in group) for group in (trace.jobs, trace.background)
    )
    return replace(trace, jobs=jobs, background=background)


def _start(job: TraceJob) -> float:
    return job.recorded_start_s or 0.0


def _run(job: TraceJob) -> float:
    return job.recorded_run_s or 0.0


def _moved(job: TraceJob, by: float) -> TraceJob:
    """The job with its times relative to ``by``."""
    return replace(job, submit_s=job.submit_s - by, recorded_start_s=_start(job) - by)
