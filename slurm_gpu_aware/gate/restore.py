"""Restore of gated jobs: close the gate, read back, restore the request, open the gate.

No other code removes a binding. A job that starts while its nodes are taken back would shrink, so
the gate closes first, in an update of its own, and only a job that reads back as pending behind it
is restored. After an interruption a later call, or the end of the gate, lets the job go. The
caller must hold the gate meanwhile.
"""

import logging
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import (
    BOUND,
    extra_with_clock,
    is_ours,
    marked,
    marker_of,
    unmarked,
    without_note,
)
from slurm_gpu_aware.gate.gated_job import (
    GatedJob,
    gated_jobs,
    has_task,
    is_changed,
    settle_changes,
    task_number,
    unbound_orphans,
)
from slurm_gpu_aware.gate.licence_gate import leave_pool_fields
from slurm_gpu_aware.gate.request_forms import (
    Binding,
    Fields,
    excluded_again,
    kept_tasks,
    restored_fields,
)
from slurm_gpu_aware.gate.resizing import bound_fields
from slurm_gpu_aware.gate.typed_requests import gpu_types, type_sentence
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.gres import shards_of
from slurm_gpu_aware.slurm.records import SlurmJob, split_arrays, update_ids
from slurm_gpu_aware.slurm.updates import JobUpdate

log = logging.getLogger(__name__)

FEW = 20  # Up to this many jobs are read one by one; for more, it is quicker to read all.
_MAX_TASKS = 500
"""Tasks of one array that a round updates one by one; later rounds update the others."""


@dataclass
class Restoration:
    """Outcome of one call."""

    parked: list[GatedJob] = field(default_factory=list)
    """Jobs behind the closed gate, as read back; restored unless ``wrong`` names them."""
    left: dict[str, list[str]] = field(default_factory=dict)
    """Job -> ids of its records with a gate that was opened for good."""
    wrong: dict[str, str] = field(default_factory=dict)  # Job -> why it could not be restored.
    refused: set[str] = field(default_factory=set)
    """Those of ``wrong`` of which Slurm refused an update."""
    untouched: list[GatedJob] = field(default_factory=list)
    """Those of ``parked`` that show their original request."""


def restore(
    client: SlurmClient,
    gate: GateConfig,
    jobs: Sequence[GatedJob],
    now: float,
    *,
    then: JobPhase = JobPhase.WAITING,
    split: Set[int] = frozenset(),
    just_read: bool = False,
) -> Restoration:
    """Restore the original request of jobs; open their gate unless ``then`` is ``waiting``.

    Parameters
    ----------
    jobs : gated jobs with an open or closed gate.
    now : Unix seconds.
    then : ``waiting``, or with an open gate ``left`` or ``opened``.
    just_read : closed jobs were read while the gate was held, as `close_gate` does.
    split : arrays of which tasks have records of their own; see `update_ids`.

    Raises SourceError; repeat the call.
    """
    # A bound job may have started since it was read; nothing is restored in one that was not bound.
    at_rest = (JobPhase.WAITING, JobPhase.HELD, *([JobPhase.PREPARED] if just_read else []))
    outcome = Restoration(parked=[job for job in jobs if job.phase in at_rest])
    wrong = outcome.wrong
    outcome.parked += close_gate(
        client, gate, [job for job in jobs if job.phase not in at_rest], now, wrong
    )
    most = None if then is JobPhase.OPENED else _MAX_TASKS  # no call follows an operator's
    restoring = {job.id: _updates(job, restored(job), split, most, wrong) for job in outcome.parked}
    known = wrong.keys()
    outcome.untouched = [j for j in outcome.parked if not restoring[j.id] and j.id not in known]
    bound = _send(client, outcome, restoring)
    if then is not JobPhase.WAITING:
        opening: dict[str, list[JobUpdate]] = {}
        for job in outcome.parked:
            fields = open_fields(job, now, then)
            if job.job.reservation is None and job.job.holding_pool is None:
                fields += (("ReservationName", ""),)  # a round may be moving it to the holding pool
            updates = _updates(job, fields, split, most, wrong)
            if then is JobPhase.LEFT and job.phase is JobPhase.PREPARED:
                # Open and bound, a job that the selector leaves would belong to no one.
                updates = [update for update in updates if update.job_id not in bound]
            opening[job.id] = updates
        refused = _send(client, outcome, opening)
        outcome.left = {
            job_id: [update.job_id for update in updates if update.job_id not in refused]
            for job_id, updates in opening.items()
        }
    return outcome


def _send(
    client: SlurmClient, outcome: Restoration, updates: dict[str, list[JobUpdate]]
) -> dict[str, str]:
    """Send the updates of each job; note the first refusal of each job."""
    refused = client.update_jobs([one for sent in updates.values() for one in sent])
    for job_id, sent in updates.items():
        why = next((refused[one.job_id] for one in sent if one.job_id in refused), None)
        if why is not None:
            outcome.wrong[job_id] = why
            outcome.refused.add(job_id)
    return refused


def close_gate(
    client: SlurmClient,
    gate: GateConfig,
    jobs: Sequence[GatedJob],
    now: float,
    wrong: dict[str, str],
) -> list[GatedJob]:
    """Close the gate of jobs; return those that read back as parked."""
    if not jobs:
        return []
    updates = []
    for job in jobs:
        licences = ",".join(filter(None, [job.original.licenses, f"{gate.licence}:1"]))
        try:
            updates.append(JobUpdate(job.id, (*_without_note(job), ("Licenses", licences))))
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
        if is_changed(shown, gate):
            continue  # its owner has just closed the gate
        if seen.parked:
            parked.append(seen)
        elif shown.state == "PENDING":
            wrong[job.id] = refused.get(job.id, "its licences did not change")
        elif shown.licence_count(gate.licence):  # started meanwhile: it does not need the licence
            started.append(JobUpdate(job.id, open_fields(seen, now)))
    client.update_jobs(started)
    return parked


def _without_note(job: GatedJob) -> Fields:
    """Field that takes away the note of a change that Slurm refused at the open gate.

    Beside the gate's licence it would count as a change that waits to be settled.
    """
    own = without_note(job.job.extra)
    return () if own == (job.job.extra or "") else (("Extra", own.rstrip(",")),)


def read_jobs(client: SlurmClient, ids: Sequence[str]) -> list[SlurmJob]:
    """The jobs of these ids that exist, and others if that is quicker."""
    return client.jobs_of(ids) if len(ids) <= FEW else client.jobs()


def _updates(
    job: GatedJob, fields: Fields, split: Set[int], most: int | None, wrong: dict[str, str]
) -> list[JobUpdate]:
    """One update for each of the job's records; none without fields."""
    try:
        return [JobUpdate(i, fields) for i in update_ids(job.job, split, most)] if fields else []
    except ValueError as exc:
        wrong[job.id] = f"it must be released by hand: {exc}"
        return []


def restored(job: GatedJob) -> Fields:
    """Fields that clear binding, clock and marker of a job behind the closed gate.

    None for an unreadable request, which was never placed.
    """
    bound = job.marker is not None and job.marker.phase in BOUND
    try:
        fields: Fields = ()
        if job.original.left is None:
            fields = restored_fields(job.job, job.original, marked=bound)
        if bound and not job.original.partial:
            fields += excluded_again(job.job, job.original)
        JobUpdate(job.id, fields)
    except (SourceError, ValueError) as exc:
        log.warning("job %s keeps its present request: %s", job.id, exc)
        return ()
    extra = extra_with_clock(job.job.extra, None)
    if extra is not None and extra != (job.job.extra or ""):
        fields += (("Extra", extra),)
    comment = job.job.admin_comment or ""
    if marker_of(comment) is not None:
        fields += (("AdminComment", unmarked(comment)),)
    return fields


def prepared_fields(
    gated: GatedJob, binding: Binding, now: float, state: str
) -> tuple[Fields, bool]:
    """(fields that bind a job, its marker with them; whether its clock could be written)."""
    job, original = gated.job, gated.original
    fields = bound_fields(original, binding) + leave_pool_fields(job)
    if binding.clock_mhz is None and job.tres_freq != original.tres_freq:
        fields += (("TresFreq", original.tres_freq or ""),)
    whole = None if shards_of(original.tres_per_node) else binding.slots
    extra = extra_with_clock(job.extra, binding.clock_mhz, whole, binding.power_limit_w)
    if extra is not None and extra != (job.extra or ""):
        fields += (("Extra", extra),)
    comment = marked(job.admin_comment or "", JobPhase.PREPARED, job.restarts, now, state)
    return (*fields, ("AdminComment", comment)), extra is not None


def clock_fields(gated: GatedJob, clock_mhz: int | None, limit_w: int | None = None) -> Fields:
    """Fields that set clock and power limit of a job of which Slurm chooses the GPUs."""
    if clock_mhz is None and limit_w is None:
        return ()
    tres = (("TresFreq", f"gpu:{clock_mhz}"),) if clock_mhz is not None else ()
    extra = extra_with_clock(gated.job.extra, clock_mhz, limit_w=limit_w)
    return (*tres, *((("Extra", extra),) if extra is not None else ()))


def open_fields(job: GatedJob, now: float, then: JobPhase | None = None) -> Fields:
    """Fields of an update that let a job start: its user's licences, no pool, no begin time.

    ``then``: its new marker; None: the marker stays.
    """
    fields = (("Licenses", job.original.licenses or ""), *leave_pool_fields(job.job))
    if then is not None and is_ours(job.job.admin_comment):  # a comment of another program stays
        state = None if then is JobPhase.RELEASED else ""
        comment = marked(job.job.admin_comment or "", then, job.job.restarts, now, state)
        fields = (("AdminComment", comment), *fields)
    if then in (JobPhase.LEFT, JobPhase.OPENED) or job.left:
        fields += kept_tasks(job.original)
    return (*fields, *begin_fields(job, now))


def begin_fields(job: GatedJob, now: float) -> Fields:
    """Fields of an update that clear the filter's begin time; empty if it has passed."""
    ahead = job.deferred and (job.original.begin_s or 0) >= now
    return (("StartTime", "now"),) if ahead and job.job.state == "PENDING" else ()


def release_by_hand(
    client: SlurmClient, config: Config, job_ids: Sequence[str] | None
) -> list[str]:
    """Open the gate for these jobs (ids as users type them; None: all parked ones).

    ``98`` names a job, or all parked tasks of array 98; ``98_3`` names one task, ``98+1`` the whole
    heterogeneous job, of which the first component is parked. Returns the ids of the released jobs.
    Raises SourceError if a named job is not parked, or would wait behind an earlier task of its
    array that stays parked, or Slurm refused an update.
    """
    jobs = client.jobs()
    if settle_changes(client, config.gate, gated_jobs(jobs, config.gate), split_arrays(jobs)):
        jobs = client.jobs()
    parked = [job for job in gated_jobs(jobs, config.gate) if job.parked]
    parked += unbound_orphans(jobs, config.gate)
    if job_ids is None:
        chosen = parked
    else:
        chosen = []
        for job_id in dict.fromkeys(one.partition("+")[0] for one in job_ids):
            named = [match for job in parked if (match := _named(job_id, job)) is not None]
            if not named:
                raise SourceError(f"job {job_id} is not parked{_of_slurm(job_id, jobs, client)}")
            chosen += named
        _check_order(chosen, parked)
    split = split_arrays(jobs)
    wrong = restore(
        client, config.gate, chosen, time.time(), then=JobPhase.OPENED, split=split
    ).wrong
    if bound := _bound_meanwhile(client, config.gate, chosen):
        done = restore(client, config.gate, bound, time.time(), then=JobPhase.OPENED, split=split)
        wrong |= done.wrong
    if wrong:
        job_id, why = next(iter(wrong.items()))
        raise SourceError(f"Slurm refused to open the gate of job {job_id}: {why}")
    return [job.id for job in chosen]


def _bound_meanwhile(
    client: SlurmClient, gate: GateConfig, opened: Sequence[GatedJob]
) -> list[GatedJob]:
    """Opened jobs that a selector bound after they were read: no selector looks after them."""
    ids = {job.id for job in opened}
    return [
        job
        for job in gated_jobs(client.jobs(), gate)
        if ids & {job.id, str(job.job.array_id)} and job.phase is JobPhase.OPENED and job.bound
    ]


def _of_slurm(job_id: str, jobs: Sequence[SlurmJob], client: SlurmClient) -> str:
    """Why Slurm alone places a pending job, as the rest of a sentence."""
    for job in jobs:
        if job.state == "PENDING" and job_id in (job.id, str(job.raw_id)) and gpu_types(job):
            return f": {type_sentence(job, client.nodes())}"
    return "; see 'gpu-aware queue'"


def _check_order(chosen: Sequence[GatedJob], parked: Sequence[GatedJob]) -> None:
    """Raise SourceError for a task that would not start because an earlier one stays parked.

    Only a task with a record of its own has this effect; the unsplit rest comes last.
    """
    named = {job.id for job in chosen}
    stay = [job for job in parked if job.job.array_tasks is None and job.id not in named]
    for job in chosen:
        if job.job.array_id is None:
            continue
        tasks = [other.id for other in stay if other.job.array_id == job.job.array_id]
        first = min(tasks, key=task_number, default=job.id)
        if task_number(first) < task_number(job.id):
            raise SourceError(
                f"job {job.id} would not start before {first}, an earlier task of its array that"
                f" is parked: release {first} first"
            )


def _named(job_id: str, gated: GatedJob) -> GatedJob | None:
    """The job if the id names it, or one task of an unsplit array; None: another job."""
    job = gated.job
    if job_id in (job.id, str(job.raw_id), str(job.array_id)):
        return gated
    if not has_task(job, job_id):
        return None
    return gated.task(f"{job.array_id}_{int(job_id.partition('_')[2])}")  # 98_03 is 98_3
