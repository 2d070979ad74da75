"""Jobs that are pinned and wait are given back to Slurm: closed, unpinned, opened.

A job that starts while its nodes are being taken back would shrink. So its gate is closed first,
and only what then reads back as pending behind it is unpinned. The caller sees to it that the gate
is held meanwhile. Whoever dies in between leaves a job that the gate's end lets go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.gate.holding_pool import open_fields
from slurm_gpu_aware.gate.job_marker import HAND, RELEASED, marked, unmarked
from slurm_gpu_aware.gate.licence_gate import closed_licences
from slurm_gpu_aware.gate.restore import undo_fields
from slurm_gpu_aware.slurm.client import JobUpdate, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["Pinned", "reopen"]


@dataclass(frozen=True)
class Pinned:
    """A pending job that we pinned."""

    job: SlurmJob
    record: str
    """What the filter wrote into its AdminComment."""
    original: OriginalRequest
    """The same, read."""

    @classmethod
    def of(cls, job: SlurmJob, record: str | None) -> Pinned | None:
        """The job with its record; None if that cannot be read."""
        original = parse(record)
        if original is None or record is None:
            return None
        return cls(job, unmarked(record), original)


def reopen(
    client: SlurmClient, gate: GateConfig, pinned: Sequence[Pinned], now: float
) -> dict[str, str]:
    """Undo the pins of jobs and open their gate for good.

    An AdminComment that is still ours then says so; what somebody else wrote there stays.

    Returns why, for each job that is not as it should be: it is parked, or could not be opened.
    Raises SourceError if Slurm does not answer.
    """
    wrong: dict[str, str] = {}
    closing: list[JobUpdate] = []
    for entry in pinned:
        if entry.job.licence_count(gate.licence):
            continue
        try:
            closed = closed_licences(entry.original, gate)
            closing.append(JobUpdate(entry.job.id, (("Licenses", closed),)))
        except ValueError as exc:
            wrong[entry.job.id] = str(exc)
    refused = client.update_jobs(closing)
    seen = {job.id: job for job in client.jobs()}
    unpinning: list[JobUpdate] = []
    parked: list[Pinned] = []
    opening: list[JobUpdate] = []
    for entry in pinned:
        job = seen.get(entry.job.id)
        if job is None or entry.job.id in wrong:
            continue
        closed_now = job.licence_count(gate.licence) > 0
        if job.state == "PENDING" and not closed_now:
            wrong[job.id] = refused.get(job.id, "its licences did not change")
        elif job.state == "PENDING":
            try:
                unpinning += _unpinned(replace(entry, job=job))
            except (SourceError, ValueError) as exc:
                wrong[job.id] = f"its request cannot be read: {exc}"
            else:
                parked.append(replace(entry, job=job))
        elif closed_now:  # it has started meanwhile, and does not need the licence
            opening.append(JobUpdate(job.id, open_fields(job, entry.original, now)))
    # Open and pinned, a job would be nobody's: what keeps its pins stays closed.
    wrong |= client.update_jobs(unpinning)
    opening += [_opened(entry, now) for entry in parked if entry.job.id not in wrong]
    return wrong | client.update_jobs(opening)


def _unpinned(entry: Pinned) -> list[JobUpdate]:
    """With the record and a mark, so that all is undone that placing may have changed."""
    known = marked(entry.record, RELEASED, entry.job.restarts, 0.0)
    fields = undo_fields(replace(entry.job, admin_comment=known), entry.original)
    fields = tuple((name, value) for name, value in fields if name != "AdminComment")
    return [JobUpdate(entry.job.id, fields)] if fields else []


def _opened(entry: Pinned, now: float) -> JobUpdate:
    fields = open_fields(entry.job, entry.original, now)
    if parse(entry.job.admin_comment) is not None:
        comment = marked(entry.job.admin_comment or "", HAND, entry.job.restarts, now)
        fields = (("AdminComment", comment), *fields)
    return JobUpdate(entry.job.id, fields)
