"""Gated job: a job that the filter parked, with its record, marker and phase; changes by its owner.

An orphan is a gated job that has lost its record, because AdminComment was overwritten. Only the
ledger still knows its original request.

If the owner changes the job (``scontrol update``), the new request becomes the record.
The filter (``etc/lua/gpu_aware_change.lua``) lets a changed job wait behind the gate with
`filter_rules.CHANGED_LICENCES` of the gate's licence and the record of the changed request at the
end of Extra. Fields of a bound job's binding stand in that record only. To settle the change, the
selector gives the job this request without a binding. Slurm finds some errors when it has set all
else, so only when it has accepted that, the record moves to AdminComment, and the licence is asked
for once. Until then the filter refuses every other update that could undo the change.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import (
    BOUND,
    JobMarker,
    OriginalRequest,
    extra_with_clock,
    marker_of,
    noted_record,
    parse,
    state_of,
    unmarked,
    with_features,
)
from slurm_gpu_aware.gate.request_forms import Fields, changed_fields, excluded_again, is_bound
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.gres import bound_slots
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob, array_tasks, record_id
from slurm_gpu_aware.slurm.updates import JobUpdate

log = logging.getLogger(__name__)

ELSEWHERE = "other-nodes"  # State of a job that may start on nodes without GPUs.
_PARKED = frozenset({JobPhase.WAITING, JobPhase.HELD, JobPhase.PREPARED})


@dataclass(frozen=True)
class GatedJob:
    """A job that the filter parked, as Slurm shows it."""

    job: SlurmJob
    original: OriginalRequest  # The user's request, as the filter recorded it.
    marker: JobMarker | None
    phase: JobPhase  # Never ``planned``, which only the ledger knows.

    @property
    def id(self) -> str:
        """Id as users type it: ``98``, or ``98_3`` for an array task."""
        return self.job.id

    @property
    def parked(self) -> bool:
        """Whether it is pending and the gate keeps it from starting."""
        return self.phase in _PARKED

    @property
    def released(self) -> bool:
        """Whether it is pending with a binding, and the gate is open."""
        return self.phase in (JobPhase.RELEASED, JobPhase.REQUEUED) and not self.elsewhere

    @cached_property
    def elsewhere(self) -> bool:
        """Whether it may start on nodes without GPUs before its turn (`selector.elsewhere`)."""
        return self.phase is JobPhase.RELEASED and state_of(self.job.admin_comment) == ELSEWHERE

    @property
    def bound(self) -> bool:
        """Whether its nodes or GPUs differ from the request, whatever the marker says."""
        return _is_bound(self.job, self.original)

    @property
    def left(self) -> bool:
        """Whether Slurm chooses the nodes and GPUs of a released job."""
        return not self.bound and (self.original.left is not None or not self.job.req_nodes)

    def opened_s(self, now: float) -> float:
        """When its gate opened, Unix seconds; ``now`` if no marker says it."""
        told = self.marker
        if told is None or told.phase is not JobPhase.RELEASED:
            return now
        return min(now, told.at) if told.restarts == self.job.restarts else now

    @cached_property
    def deferred(self) -> bool:
        """Whether its begin time is the filter's, not one that a user or a requeue set later."""
        begin_s = self.original.begin_s
        return begin_s is not None and self.job.eligible_s == begin_s

    @property
    def only_deferred(self) -> bool:
        """Whether Slurm shows the filter's begin time as the reason why it waits."""
        return self.job.reason == "BeginTime" and self.deferred

    def task(self, job_id: str) -> GatedJob:
        """One task of an unsplit array record, as a record of its own."""
        if job_id == self.id:
            return self
        return replace(self, job=replace(self.job, id=job_id, array_tasks=None))

    def as_seen(self, job: SlurmJob, gate: GateConfig) -> GatedJob:
        """The same request in a newer record of the job."""
        marker = marker_of(job.admin_comment) or self.marker
        return replace(self, job=job, marker=marker, phase=_phase(job, self.original, marker, gate))


def gated_job(job: SlurmJob, gate: GateConfig) -> GatedJob | None:
    """The gated job; None if the filter did not park the job or its record is lost."""
    original = parse(job.admin_comment)
    if original is None:
        return None
    if original.partial:
        original = replace(original, licenses=_own_licences(job, gate))
    marker = marker_of(job.admin_comment)
    return GatedJob(job, original, marker, _phase(job, original, marker, gate))


def gated_jobs(jobs: Iterable[SlurmJob], gate: GateConfig) -> list[GatedJob]:
    """All gated jobs among ``jobs``, in their order."""
    found = (gated_job(job, gate) for job in jobs if job.follows is None)
    return [gated for gated in found if gated is not None]


class GatedJobs:
    """The gated jobs of one reading after another; an unchanged record gives the same object."""

    def __init__(self, gate: GateConfig) -> None:
        self._gate = gate
        self._known: dict[int, tuple[SlurmJob, GatedJob | None]] = {}

    def among(self, jobs: Iterable[SlurmJob]) -> list[GatedJob]:
        """All gated jobs among ``jobs``, in their order."""
        before, known = self._known, {}
        for job in jobs:
            last = before.get(id(job))
            if last is None or last[0] is not job:
                last = job, gated_job(job, self._gate) if job.follows is None else None
            known[id(job)] = last
        self._known = known
        return [gated for _, gated in known.values() if gated is not None]


def _own_licences(job: SlurmJob, gate: GateConfig) -> str | None:
    """Those of its user, as Slurm shows them."""
    own = (f"{name}:{count}" for name, count in job.licenses if name != gate.licence)
    return ",".join(own) or None


def _is_bound(job: SlurmJob, original: OriginalRequest) -> bool:
    if original.left is not None:
        return False
    try:
        return is_bound(job, original)
    except SourceError:
        return False  # a request that cannot be read was never bound


def _phase(
    job: SlurmJob, original: OriginalRequest, marker: JobMarker | None, gate: GateConfig
) -> JobPhase:
    if job.state in HOLDING:
        return JobPhase.STARTED
    if job.state != "PENDING":
        return JobPhase.ENDED
    bound = marker.phase in BOUND if marker is not None else _is_bound(job, original)
    if job.licence_count(gate.licence):
        if bound:
            return JobPhase.PREPARED
        return JobPhase.HELD if job.holding_pool is not None else JobPhase.WAITING
    if not bound:
        return marker.phase if marker is not None else JobPhase.OPENED
    requeued = marker is not None and job.restarts > marker.restarts
    return JobPhase.REQUEUED if requeued else JobPhase.RELEASED


def task_number(job_id: str) -> float:
    """Number of an array task; inf: another job, or the unsplit rest of an array, which is last."""
    task = job_id.partition("_")[2]
    return float(task) if task else math.inf


def queue_order(job: SlurmJob) -> tuple[float, float, int, float]:
    """Sort key of Slurm's order: priority, age, number; tasks of one array by task number."""
    return -job.priority, job.submit_s, job.array_id or job.raw_id, task_number(job.id)


def has_task(job: SlurmJob, job_id: str) -> bool:
    """Whether ``98_5`` is one of the tasks of an unsplit array record."""
    array, _, task = job_id.partition("_")
    if job.array_tasks is None or array != str(job.array_id) or not task.isdecimal():
        return False
    try:
        return int(task) in array_tasks(job.array_tasks)
    except ValueError:
        return False


class LastDecision(Protocol):
    """What the ledger last decided about a job (`store.ledger.Decision`)."""

    @property
    def user(self) -> str: ...
    @property
    def nodes(self) -> Sequence[str]: ...
    @property
    def gpus(self) -> tuple[int, ...] | None: ...
    @property
    def record(self) -> str | None: ...


def bound_orphan(job: SlurmJob, gate: GateConfig, last: LastDecision) -> GatedJob | None:
    """The gated job of an orphan that is bound as the ledger last decided; None: it is not.

    Slurm can reuse a job number, so user and binding must be those of the decision.
    """
    slots = bound_slots(job)
    same_nodes = bool(job.req_nodes) and set(job.req_nodes) == set(last.nodes)
    if not last.nodes:  # Slurm was to choose them
        same_nodes = slots is None
    original = parse(last.record) if last.user == job.user else None
    if original is None or (slots != last.gpus if slots is not None else not same_nodes):
        return None
    marker = JobMarker(JobPhase.RELEASED, job.restarts, 0.0)  # so that every field is restored
    return GatedJob(job, original, marker, JobPhase.RELEASED).as_seen(job, gate)


def unbound_orphans(jobs: Iterable[SlurmJob], gate: GateConfig) -> list[GatedJob]:
    """Pending jobs at the gate without a record, each with its present request."""
    return [
        unbound_orphan(job, gate)
        for job in jobs
        if job.state == "PENDING"
        and job.licence_count(gate.licence)
        and parse(job.admin_comment) is None
    ]


def unbound_orphan(job: SlurmJob, gate: GateConfig) -> GatedJob:
    """The gated job of an orphan at the gate: its present request without the gate's licence."""
    original = OriginalRequest(
        tres_per_node=job.tres_per_node,
        tres_per_job=job.tres_per_job,
        tres_per_task=job.tres_per_task,
        cpus_per_tres=job.cpus_per_tres,
        licenses=_own_licences(job, gate),
        req_nodes=",".join(job.req_nodes) or None,
        tres_freq=job.tres_freq,
    )
    return GatedJob(job, original, None, JobPhase.WAITING)


@dataclass(frozen=True)
class Change:
    """A change of a job by its owner."""

    job: GatedJob  # The job as it was read, with the request before the change.
    record: str  # Record of the changed request.
    refused: str | None
    """Why Slurm refused the changed request, so that the job has its old one; None: it did not."""


def is_changed(job: SlurmJob, gate: GateConfig) -> bool:
    """Whether the owner of a parked job has changed it and the change is not settled.

    Of an update that Slurm refused half-way the record in Extra stays, and its sizes may.
    """
    count = job.licence_count(gate.licence)
    noted = count > 0 and noted_record(job.extra) is not None
    return job.state == "PENDING" and (noted or count == rules.CHANGED_LICENCES)


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
    refused = _send(client, gate, changed, records, split, (_request_fields, _record_fields))
    # Slurm itself has not checked the fields of a binding, such as the names of nodes.
    refusals = [job for job in changed if job.id in refused]
    again, newer = _read_again(client, refusals)
    before = {job.id: _present_record(job) for job in again}
    for job_id, why in _send(client, gate, again, before, split, (_all_fields,)).items():
        log.warning("job %s keeps a change of its owner that cannot be settled: %s", job_id, why)
    settled = [job for job in changed if job.id not in newer]
    return [Change(job, records[job.id], refused.get(job.id)) for job in settled]


def _read_again(client: SlurmClient, jobs: Sequence[GatedJob]) -> tuple[list[GatedJob], set[str]]:
    """(Jobs as an update has left them that Slurm refused in part, ids of the others: their owner
    has changed them once more since they were read)."""
    shown = {job.id: job for job in client.jobs_of([job.id for job in jobs])} if jobs else {}
    now = [(job, shown.get(job.id, job.job)) for job in jobs]
    # The update may have taken the record out of Extra.
    same = [
        replace(job, job=one)
        for job, one in now
        if (one.extra or "") in {job.job.extra or "", _settled_extra(job)}
    ]
    return same, {job.id for job in jobs} - {job.id for job in same}


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
    steps: Sequence[Callable[[GatedJob, str, GateConfig], Fields]],
) -> dict[str, str]:
    """Give jobs the requests of these records; job -> why Slurm refused it.

    ``steps``: the fields of one update after the other. Without fields there is none, and none
    follows a refused one.
    """
    refused: dict[str, str] = {}
    for step in steps:
        sent: dict[str, JobUpdate] = {}
        for job in jobs:
            try:
                fields = step(job, records[job.id], gate) if job.id not in refused else ()
                if fields:
                    sent[job.id] = JobUpdate(record_id(job.job, split), fields)
            except (SourceError, ValueError) as exc:
                refused[job.id] = str(exc)
        why = client.update_jobs(list(sent.values()))
        refused |= {i: why[one.job_id] for i, one in sent.items() if one.job_id in why}
    return refused


def _request_fields(job: GatedJob, record: str, gate: GateConfig) -> Fields:
    """Fields that give a job the request of a record; none if it shows it already."""
    request = parse(record) or OriginalRequest()
    marker = marker_of(job.job.admin_comment)
    bound = marker is not None and marker.phase in BOUND
    fields = changed_fields(job.job, job.original, request, bound=bound)
    fields += excluded_again(job.job, request) if bound else ()
    # With these licences the filter lets it pass, and the change stays open.
    return fields and (*fields, _licences(request, gate, rules.CHANGED_LICENCES))


def _record_fields(job: GatedJob, record: str, gate: GateConfig) -> Fields:
    """Fields that record the request, which Slurm has accepted, and end the change."""
    licences = _licences(parse(record) or OriginalRequest(), gate, 1)
    return ("AdminComment", record), ("Extra", _settled_extra(job)), licences


def _all_fields(job: GatedJob, record: str, gate: GateConfig) -> Fields:
    """Both, for a request that Slurm has accepted before: all is set, whatever it finds last."""
    both = dict((*_request_fields(job, record, gate), *_record_fields(job, record, gate)))
    return tuple(both.items())


def _licences(request: OriginalRequest, gate: GateConfig, count: int) -> tuple[str, str]:
    return "Licenses", ",".join(filter(None, [request.licenses, f"{gate.licence}:{count}"]))
