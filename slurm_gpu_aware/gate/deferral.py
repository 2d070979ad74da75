"""Jobs that come while parked jobs wait on the shelf: none before the selector has seen them.

Slurm's main scheduler would try each of them at every node once, as its gate is only a licence. So
the filter (``etc/lua/gpu_aware_defer.lua``) gives a job a begin time some seconds ahead, and writes
it into AdminComment (``bt``). Meanwhile the selector puts the job on the shelf, or places it and
lets it begin at once; if it does neither, the begin time passes. Until when the filter does so
stands in a file: a selector that has died does not renew it, and it ends with the gate.
"""

from __future__ import annotations

from pathlib import Path

from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["begin_fields", "defer_until", "is_deferred", "only_deferred"]


def defer_until(submit_file: Path, until_s: float) -> None:
    """Tell the filter, in a file beside ``submit_file``; ``until_s``: Unix seconds.

    Raises OSError: the filter goes on without.
    """
    path = submit_file.with_name(f"{submit_file.name}.defer")
    new = path.with_name(f"{path.name}.new")
    new.write_text(f"{int(until_s)}\n")
    new.replace(path)


def only_deferred(job: SlurmJob) -> bool:
    """Whether Slurm shows as reason the begin time that the filter gave a parked job."""
    return job.reason == "BeginTime" and is_deferred(job)


def is_deferred(job: SlurmJob) -> bool:
    """Whether a parked job's begin time is the one that the filter gave it.

    Another eligible time is one that a user or Slurm (requeue) has set since.
    """
    original = parse(job.admin_comment)
    return (
        original is not None and original.begin_s is not None and job.eligible_s == original.begin_s
    )


def begin_fields(
    job: SlurmJob, original: OriginalRequest, now: float
) -> tuple[tuple[str, str], ...]:
    """Fields of an update with which a job need not wait for that begin time; ``now``: Unix s."""
    if job.state != "PENDING" or not is_deferred(job):
        return ()
    ahead = original.begin_s is not None and original.begin_s >= now
    return (("StartTime", "now"),) if ahead else ()
