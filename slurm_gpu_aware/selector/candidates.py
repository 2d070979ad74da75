"""Candidates of a round: parked jobs to plan, to keep waiting with a reason, to leave to Slurm."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.sizes import default_cpus
from slurm_gpu_aware.admission.snapshot import NODE_TAKEN
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.licences import Licences, own_licences
from slurm_gpu_aware.selector.placer import Candidate
from slurm_gpu_aware.selector.pool_choice import alike, limits
from slurm_gpu_aware.selector.task_order import TaskOrder, queue_order
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob, array_tasks

__all__ = ["PLANNABLE", "Candidates", "held_by", "waiting_entry"]

log = logging.getLogger(__name__)

PLANNABLE = frozenset({"Licenses", "Priority", "Resources", "None", NODE_TAKEN})
"""Reasons of parked jobs that only the gate holds."""
_MAX_TASKS = 500
"""Array tasks of one array that one round plans."""


def waiting_entry(job_id: str, reason: str, shadow_start_s: float | None = None) -> dict[str, Any]:
    """The record of a waiting job in a round."""
    return {"job_id": job_id, "reason": reason, "shadow_start_s": shadow_start_s}


def held_by(gated: GatedJob, now: float) -> str | None:
    """What holds a parked job beside the gate, in Slurm's word; None: nothing that is known.

    A job that Slurm has not tried yet (every new array) shows no reason, so its dependency and its
    begin time are checked, too.
    """
    job = gated.job
    if gated.only_deferred or (job.reason == "Reservation" and job.reservation is None):
        return None
    if job.reason not in PLANNABLE:
        return job.reason
    if job.dependency is not None:
        return "Dependency"
    ahead = job.eligible_s is not None and job.eligible_s > now
    return "BeginTime" if ahead and not gated.deferred else None


@dataclass
class Candidates:
    """The parked jobs of one round by what becomes of them."""

    context: AdmissionContext
    backoff: Backoff
    licences: Licences
    pool: HoldingPool
    to_plan: dict[str, Candidate] = field(default_factory=dict)
    """Jobs to plan, in Slurm's order."""
    leave: list[tuple[GatedJob, str]] = field(default_factory=list)
    """Jobs to leave to Slurm, and why."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    held: int = 0
    """Jobs that something other than the gate holds."""
    _order: TaskOrder = field(default_factory=TaskOrder)
    _room: dict[int, int] = field(default_factory=dict)
    """Array with a ``%limit`` -> tasks that may start now."""

    def sort_out(self, parked: Sequence[GatedJob], jobs: Sequence[SlurmJob]) -> None:
        """Assign every parked job. Raises SourceError if Slurm does not answer."""
        limited = limits(gated.job for gated in parked)
        self._room = _task_room(jobs, self.context.config.gate.licence)
        for gated in sorted(parked, key=lambda gated: queue_order(gated.job)):
            job = gated.job
            kind = alike(job)
            unseen = self.pool.holds(job) or gated.only_deferred
            shown = limited.get(kind) if unseen else None
            if shown is not None and not self.pool.may_try(kind):
                self.held += 1
                why = f"a limit holds job {shown.id}, which is like it: {shown.reason}"
                self.waiting.append(waiting_entry(job.id, why))
                continue
            holds = held_by(gated, self.context.now)
            if holds is not None:
                self.held += 1
                self.backoff.shown(job.id)
                self.waiting.append(waiting_entry(job.id, f"held by {holds}"))
                continue
            if self._order.blocks(job):
                self._wait(job, job.id, "an earlier task of its array goes first")
                continue
            for job_id in _ids(job):
                if self._room.get(job.array_id or 0, 1) <= 0:
                    self._wait(job, job.id, "its array runs as many tasks as its limit allows")
                    break
                if not self._take(gated, job_id):
                    break

    def _take(self, record: GatedJob, job_id: str) -> bool:
        """Assign a job or one of its tasks; False: its whole record is left to Slurm."""
        gated = record.task(job_id)
        job, original = gated.job, gated.original
        # A job in the pool shows no other reason; Slurm tries it before it is placed.
        unseen = self.pool.holds(job) or self.pool.awaits(job)
        reason = "Licenses" if unseen or gated.only_deferred else job.reason
        wait_s = self.backoff.wait_s(job_id, reason)
        if wait_s is not None:
            self.held += 1
            self._wait(record.job, job_id, f"it could not start; tried again in {wait_s:.0f} s")
            return True
        own = own_licences(job, self.context.reservations)
        lacking = self.licences.lacking(original.licenses, own)
        if lacking is not None:
            self._wait(record.job, job_id, f"licence {lacking} is in use")
            return True
        try:
            request = to_request(gated, self.context)
        except CannotPlanError as exc:
            if exc.leave:
                self.leave.append((record, exc.reason))
                return False
            self._wait(record.job, job_id, exc.reason)
            return True
        except Exception as exc:
            # One job that cannot be translated must not keep the others from being placed.
            log.exception("job %s is left to Slurm: its request cannot be understood", job_id)
            self.leave.append((record, f"its request cannot be understood: {exc}"))
            return False
        if request.bound and self.backoff.misplaced(job_id):
            # Only Slurm knows all that it checks, and no job may wait longer because of us.
            why = "bound to the sockets of its GPUs, it did not start where it was placed"
            self.leave.append((record, why))
            return False
        self.licences.take(original.licenses)
        unsplit = record.job.array_tasks is not None
        cpus = default_cpus(job, request, self.context)
        self.to_plan[job_id] = Candidate(gated, request, unsplit, cpus)
        if job.array_id in self._room:
            self._room[job.array_id] -= 1
        return True

    def _wait(self, job: SlurmJob, job_id: str, reason: str) -> None:
        self.waiting.append(waiting_entry(job_id, reason))
        self._order.waits(job)


def _ids(job: SlurmJob) -> list[str]:
    """The job's id, or those of the tasks that its record still holds."""
    if job.array_tasks is None:
        return [job.id]
    try:
        tasks = array_tasks(job.array_tasks)
    except ValueError as exc:
        log.warning("job %s: %s", job.id, exc)
        return []
    return [f"{job.array_id}_{task}" for task in tasks[:_MAX_TASKS]]


def _task_room(jobs: Sequence[SlurmJob], licence: str) -> dict[int, int]:
    """Array with a ``%limit`` -> tasks that may start beside those that run or are about to.

    The gate keeps parked tasks from starting: Slurm does not count them, whatever holds them.
    """
    room = {job.array_id: job.array_limit for job in jobs if job.array_id and job.array_limit}
    for job in jobs:
        starts = job.state == "PENDING" and not job.licence_count(licence)
        if job.array_id in room and job.array_tasks is None and (job.state in HOLDING or starts):
            room[job.array_id] -= 1
    return room
