"""Release of gated jobs: close the gate, read back, restore the request, open the gate.

The only way in which a job loses its binding. A job that starts while its nodes are being taken
back would shrink, so the gate is closed first, alone, and only a job that then reads back as
pending behind it is restored. An interruption leaves a job that a later call, or the gate's end,
lets go. The caller sees to it that the gate is held meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import is_ours
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.holding_pool import left_fields
from slurm_gpu_aware.gate.job_marker import BOUND, marked, unmarked
from slurm_gpu_aware.gate.request_forms import Fields, restored_fields
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import JobUpdate, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, update_ids

__all__ = [
    "FEW",
    "Release",
    "begin_fields",
    "extra_with_clock",
    "open_fields",
    "read_jobs",
    "release",
]

log = logging.getLogger(__name__)

FEW = 20
"""So many jobs are read one by one; for more, reading all takes less."""
_MAX_TASKS = 500
"""Tasks of one array that a round restores or leaves one by one; a later one takes the others."""


@dataclass
class Release:
    """What became of the jobs of one call."""

    parked: list[GatedJob] = field(default_factory=list)
    """Behind the closed gate, as read back, with their own request unless ``wrong`` names them."""
    opened: dict[str, list[str]] = field(default_factory=dict)
    """Job -> ids of its records whose gate is open for good."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Job -> why it is not as it should be."""


def release(
    client: SlurmClient,
    gate: GateConfig,
    jobs: Sequence[GatedJob],
    now: float,
    *,
    then: JobPhase = JobPhase.WAITING,
    split: Set[int] = frozenset(),
) -> Release:
    """Give jobs back their original request, and open their gate unless they go on waiting.

    Parameters
    ----------
    jobs : gated jobs, their gate open or closed; closed ones are not read again.
    now : Unix seconds.
    then : ``waiting``, or with an open gate ``left`` or ``opened``.
    split : arrays of which tasks stand in records of their own; see `update_ids`.

    Raises
    ------
    SourceError
        Slurm does not answer; repeat the call.
    """
    found = Release(parked=[job for job in jobs if job.closed])
    still_open = [job for job in jobs if not job.closed]
    if still_open:
        found.parked += _close(client, gate, still_open, now, found.wrong)
    most = None if then is JobPhase.OPENED else _MAX_TASKS  # no call follows an operator's
    restoring = {job.id: _updates(job, _restored(job), split, most, found) for job in found.parked}
    _send(client, found, restoring)
    if then is not JobPhase.WAITING:
        opening = {
            job.id: _updates(job, _opening(job, then, now), split, most, found)
            for job in found.parked
            if job.id not in found.wrong
        }
        refused = _send(client, found, opening)
        found.opened = {
            job_id: [update.job_id for update in updates if update.job_id not in refused]
            for job_id, updates in opening.items()
        }
    return found


def _send(
    client: SlurmClient, found: Release, updates: dict[str, list[JobUpdate]]
) -> dict[str, str]:
    """Send updates, by the job that they are for; note the first refusal of each job."""
    refused = client.update_jobs([one for sent in updates.values() for one in sent])
    for job_id, sent in updates.items():
        why = next((refused[one.job_id] for one in sent if one.job_id in refused), None)
        if why is not None:
            found.wrong[job_id] = why
    return refused


def _close(
    client: SlurmClient,
    gate: GateConfig,
    jobs: Sequence[GatedJob],
    now: float,
    wrong: dict[str, str],
) -> list[GatedJob]:
    """Close the gate; return the jobs that read back as parked."""
    updates = []
    for job in jobs:
        own = f"{job.original.licenses}," if job.original.licenses else ""
        try:
            updates.append(JobUpdate(job.id, (("Licenses", f"{own}{gate.licence}:1"),)))
        except ValueError as exc:
            wrong[job.id] = str(exc)
    refused = client.update_jobs(updates)
    by_id = {job.id: job for job in read_jobs(client, [job.id for job in jobs])}
    parked: list[GatedJob] = []
    started: list[JobUpdate] = []
    for job in jobs:
        shown = by_id.get(job.id)
        if shown is None or job.id in wrong:
            continue
        seen = job.as_seen(shown, gate)
        if seen.closed:
            parked.append(seen)
        elif shown.state == "PENDING":
            wrong[job.id] = refused.get(job.id, "its licences did not change")
        elif shown.licence_count(gate.licence):  # started meanwhile: it does not need the licence
            started.append(JobUpdate(job.id, open_fields(seen, now)))
    client.update_jobs(started)
    return parked


def read_jobs(client: SlurmClient, ids: Sequence[str]) -> list[SlurmJob]:
    """These jobs, and others if that is quicker; absent ones are not among them."""
    return client.jobs_of(ids) if len(ids) <= FEW else client.jobs()


def _updates(
    job: GatedJob, fields: Fields, split: Set[int], most: int | None, found: Release
) -> list[JobUpdate]:
    """One update for each of the job's records; none if there is nothing to tell."""
    try:
        return [JobUpdate(i, fields) for i in update_ids(job.job, split, most)] if fields else []
    except ValueError as exc:
        found.wrong[job.id] = f"it must be released by hand: {exc}"
        return []


def _restored(job: GatedJob) -> Fields:
    """Fields that clear every binding, the clock and the marker; none if nothing differs.

    A request that cannot be read was never placed: its gate can be opened as it is.
    """
    bound = job.marker is not None and job.marker.phase in BOUND
    try:
        fields = restored_fields(job.job, job.original, marked=bound)
        JobUpdate(job.id, fields)
    except (SourceError, ValueError) as exc:
        log.warning("job %s keeps the request that it has now: %s", job.id, exc)
        return ()
    extra = extra_with_clock(job.job.extra, None)
    if extra is not None and extra != (job.job.extra or ""):
        fields += (("Extra", extra),)
    comment = job.job.admin_comment or ""
    if unmarked(comment) != comment:
        fields += (("AdminComment", unmarked(comment)),)
    return fields


def _opening(job: GatedJob, then: JobPhase, now: float) -> Fields:
    fields = open_fields(job, now)
    if job.job.reservation is None and job.job.holding_pool is None:
        fields += (("ReservationName", ""),)  # a round may just be putting it into the pool
    if is_ours(job.job.admin_comment):  # what another program wrote there stays
        comment = marked(job.job.admin_comment or "", then, job.job.restarts, now)
        fields = (("AdminComment", comment), *fields)
    return fields


def open_fields(job: GatedJob, now: float) -> Fields:
    """Fields of an update that let a job start: its user's own licences, no pool, no begin time."""
    own = ("Licenses", job.original.licenses or "")
    return (own, *left_fields(job.job), *begin_fields(job, now))


def begin_fields(job: GatedJob, now: float) -> Fields:
    """Fields of an update with which a job need not wait for the filter's begin time."""
    ahead = job.original.begin_s is not None and job.original.begin_s >= now
    waits = job.job.state == "PENDING" and job.deferred and ahead
    return (("StartTime", "now"),) if waits else ()


def extra_with_clock(
    extra: str | None, clock_mhz: int | None, slots: Sequence[int] | None = None
) -> str | None:
    """The job's Extra with ``freq=MHZ@SLOT+SLOT`` among its comma separated items, or without any.

    The slots go with it because SLURM_JOB_GPUS in the prolog of Slurm 24.11 names only the GPUs of
    the job's last GRES type. Without slots (plain nodes) the prolog has to believe it.

    None if what the user put there cannot be kept in an update; it is then left as it is.
    """
    items = [i for i in (extra or "").split(",") if i and not i.strip().startswith("freq=")]
    if clock_mhz is not None:
        where = "@" + "+".join(map(str, slots)) if slots else ""
        items.append(f"freq={clock_mhz}{where}")
    text = ",".join(items)
    try:
        JobUpdate("1", (("Extra", text),))
    except ValueError:
        return None
    return text
