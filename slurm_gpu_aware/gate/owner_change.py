"""Changes of gated jobs by their owners (``scontrol update``): the new request becomes the record.

The filter (``etc/lua/gpu_aware_change.lua``) lets a changed job wait behind the gate with
`filter_rules.CHANGED_LICENCES` of the gate's licence and the record of the changed request at the
end of Extra. Fields of a bound job's binding stand in that record only. One update settles the
change: the record moves to AdminComment, the job shows the request without a binding, the licence
is asked for once. Until then the filter refuses every other update that could undo the change.
"""

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import (
    BOUND,
    OriginalRequest,
    extra_with_clock,
    marker_of,
    noted_record,
    parse,
    unmarked,
    with_features,
)
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import Fields, changed_fields, excluded_again
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, record_id
from slurm_gpu_aware.slurm.updates import JobUpdate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A change of a job by its owner."""

    job: GatedJob
    """The job as it was read, with the request before the change."""
    record: str
    """Record of the changed request."""
    refused: str | None
    """Why Slurm refused the changed request, so that the job has its old one; None: it did not."""


def is_changed(job: SlurmJob, gate: GateConfig) -> bool:
    """Whether the owner of a pending job has changed it and the change is not settled."""
    return job.state == "PENDING" and job.licence_count(gate.licence) == rules.CHANGED_LICENCES


def settle_changes(
    client: SlurmClient, gate: GateConfig, jobs: Sequence[GatedJob], split: Set[int] = frozenset()
) -> list[Change]:
    """Settle the changes of all jobs that have one; returns the changes.

    A job that its owner changes once more meanwhile is left to the next call: the filter refuses
    the older record. The gate must be held. ``split``: arrays of several records. Raises
    SourceError; call again.
    """
    changed = [job for job in jobs if is_changed(job.job, gate)]
    records = {job.id: _changed_record(job) for job in changed}
    refused = _send(client, gate, changed, records, split)
    again = [job for job in changed if job.id in refused]
    newer = _changed_again(client, again)
    # Slurm itself has not checked the fields of a binding, such as the names of nodes.
    again = [job for job in again if job.id not in newer]
    before = {job.id: _present_record(job) for job in again}
    for job_id, why in _send(client, gate, again, before, split).items():
        log.warning("job %s keeps a change of its owner that cannot be settled: %s", job_id, why)
    settled = [job for job in changed if job.id not in newer]
    return [Change(job, records[job.id], refused.get(job.id)) for job in settled]


def _changed_again(client: SlurmClient, jobs: Sequence[GatedJob]) -> set[str]:
    """Ids of jobs whose owner has changed them once more since they were read."""
    # An update that Slurm refused in part may have taken the record out of Extra.
    extra = {job.id: {job.job.extra or "", _settled_extra(job)} for job in jobs}
    shown = client.jobs_of(list(extra)) if extra else ()
    return {job.id for job in shown if job.id in extra and (job.extra or "") not in extra[job.id]}


def _changed_record(job: GatedJob) -> str:
    """Record in Extra; the present one if that has been taken over, or cannot be read."""
    record = noted_record(job.job.extra)
    if record is not None and parse(record) is not None:
        return with_features(record, job.job.features or "")
    return _present_record(job)


def _present_record(job: GatedJob) -> str:
    # Features are no part of a binding, and Slurm checks them when it has Extra already: the record
    # of an update that was refused may name unknown ones.
    return with_features(unmarked(job.job.admin_comment or ""), job.job.features or "")


def _settled_extra(job: GatedJob) -> str:
    return extra_with_clock(job.job.extra, None) or ""


def _send(
    client: SlurmClient,
    gate: GateConfig,
    jobs: Sequence[GatedJob],
    records: dict[str, str],
    split: Set[int],
) -> dict[str, str]:
    """Give jobs the requests of these records; job -> why Slurm refused it."""
    refused: dict[str, str] = {}
    sent: dict[str, JobUpdate] = {}
    for job in jobs:
        try:
            fields = _fields(job, records[job.id], gate)
            sent[job.id] = JobUpdate(record_id(job.job, split), fields)
        except (SourceError, ValueError) as exc:
            refused[job.id] = str(exc)
    why = client.update_jobs(list(sent.values()))
    return refused | {i: why[update.job_id] for i, update in sent.items() if update.job_id in why}


def _fields(job: GatedJob, record: str, gate: GateConfig) -> Fields:
    """Fields of the update that settles a change."""
    request = parse(record) or OriginalRequest()
    marker = marker_of(job.job.admin_comment)
    bound = marker is not None and marker.phase in BOUND
    licences = ",".join(filter(None, [request.licenses, f"{gate.licence}:1"]))
    return (
        *changed_fields(job.job, job.original, request, bound=bound),
        *(excluded_again(job.job, request) if bound else ()),
        ("AdminComment", record),
        ("Extra", _settled_extra(job)),
        ("Licenses", licences),
    )
