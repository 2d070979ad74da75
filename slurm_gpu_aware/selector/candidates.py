"""Candidates of a round: parked jobs to plan, to keep waiting with a reason, to leave to Slurm."""

import logging
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.hints import class_of
from slurm_gpu_aware.admission.left import left_request
from slurm_gpu_aware.admission.sizes import default_cpus
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.gate.gated_job import GatedJob, queue_order, task_number
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.backoff import HELD_BY, Backoff
from slurm_gpu_aware.selector.holding_pool import (
    NO_REASON_S,
    HoldingPool,
    alike,
    blocked_by,
    is_limit,
)
from slurm_gpu_aware.selector.kept_candidates import KeptCandidates
from slurm_gpu_aware.selector.licences import Licences
from slurm_gpu_aware.selector.live import Lives, Told
from slurm_gpu_aware.selector.passers import passers
from slurm_gpu_aware.selector.waiting_jobs import EARLIER_TASK
from slurm_gpu_aware.slurm.records import (
    HOLDING,
    SlurmJob,
    array_tasks,
    components_of,
)

log = logging.getLogger(__name__)

_MAX_TASKS = 500  # array tasks of one array that one round plans
NOT_FIRST = "its request cannot be planned; Slurm gets it when no job is before it"
"""Why a job waits of which not even counts are known."""
FULL_ARRAY = "its array runs as many tasks as its limit allows"
OVER_LIMIT = "a limit lets no more jobs like it start now"


class TaskOrder:
    """Keeps the tasks of an array in their order.

    After Slurm rejects a record in a pass, it skips the later records of that array. So a parked
    task with a record of its own keeps later tasks from starting, even if their gate is open. The
    unsplit rest comes last of those with its priority: it blocks tasks with a lower one.
    """

    def __init__(self) -> None:
        self._waiting: dict[int | None, float] = {}
        """Array -> priority below which its tasks are blocked."""

    def waits(self, job: SlurmJob, *, unsplit: bool = False) -> None:
        """Note that a parked job, or a task of an unsplit rest, does not start now."""
        if job.array_id is not None:
            rest = unsplit or job.array_tasks is not None
            below = float(job.priority) if rest else math.inf
            self._waiting[job.array_id] = max(below, self._waiting.get(job.array_id, below))

    def blocks(self, job: SlurmJob) -> bool:
        """Whether an earlier record of the job's array waits."""
        return job.priority < self._waiting.get(job.array_id, -math.inf)


def task_ids(job: SlurmJob) -> list[str]:
    """The job's id, or those of the tasks that its record still holds."""
    if job.array_tasks is None:
        return [job.id]
    try:
        tasks = array_tasks(job.array_tasks)
    except ValueError as exc:
        log.warning("job %s: %s", job.id, exc)
        return []
    return [f"{job.array_id}_{task}" for task in tasks[:_MAX_TASKS]]


def _place(job: SlurmJob) -> Hashable:
    """Its kind (`alike`) and the nodes that it may get: one that waits for some of them does not
    start, and others of its kind do."""
    return alike(job), job.features, job.req_nodes, job.exc_nodes


def task_room(jobs: Sequence[SlurmJob], licence: str) -> dict[Hashable, int]:
    """Array with a ``%limit`` -> tasks that may start beside those that run or are about to."""
    room: dict[Hashable, int] = {
        job.array_id: job.array_limit for job in jobs if job.array_id and job.array_limit
    }
    for job in jobs:
        starts = job.state == "PENDING" and not job.licence_count(licence)
        if job.array_id in room and job.array_tasks is None and (job.state in HOLDING or starts):
            room[job.array_id] -= 1
    return room


@dataclass(frozen=True)
class Candidate:
    """A parked job, or one task of a parked array, that a round may place."""

    gated: GatedJob
    request: Request
    unsplit: bool = False  # Whether it is a task of an unsplit array record.
    default_cpus: int | None = None
    """CPUs with each GPU if ``DefCpuPerGPU`` applies (`Binding.cpus_per_gpu`)."""
    class_from: str | None = None  # Origin of its class (`AskedClass.source`).
    told: Told = field(default_factory=Told)
    components: tuple[SlurmJob, ...] = ()  # The later ones of a heterogeneous job.

    @property
    def id(self) -> str:
        """Id as users type it."""
        return self.gated.id


@dataclass
class Candidates:
    """The parked jobs of one round by what becomes of them."""

    context: AdmissionContext
    backoff: Backoff
    licences: Licences
    pool: HoldingPool
    lives: Lives
    to_plan: dict[str, Candidate] = field(default_factory=dict)  # Jobs to plan, in Slurm's order.
    leave: list[tuple[GatedJob, str]] = field(default_factory=list)
    """Jobs to leave to Slurm at once, and why: no round can say when their turn is."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    paused: dict[str, str] = field(default_factory=dict)
    """Planned job that does not start yet -> why: its GPUs are kept for it (`Backoff.keeps`)."""
    blocked: int = 0  # Jobs that something other than the gate holds.
    kept: KeptCandidates = field(default_factory=KeptCandidates)
    unplaceable: Mapping[int, str] = field(default_factory=dict)
    """Number of a record that planning cannot place -> why; such a job is left to Slurm in turn."""
    by_choice: Set[str] = frozenset()  # Jobs that waited by choice in the last round.
    jobs: Sequence[SlurmJob] = ()  # All, as the round read them.
    _order: TaskOrder = field(default_factory=TaskOrder)
    _components: Mapping[int, Sequence[SlurmJob]] = field(default_factory=dict)
    _room: dict[Hashable, int] = field(default_factory=dict)
    """Array with a ``%limit`` -> tasks that may start now beside those to plan."""
    _rooms: Mapping[Hashable, int] = field(default_factory=dict)
    """Kind that a limit has held -> jobs that may start now."""
    _tried: Counter[Hashable] = field(default_factory=Counter)
    """`_place` -> jobs to plan that may start there now."""

    @property
    def requests(self) -> dict[str, Request]:
        """Job to plan -> its request."""
        return {job_id: one.request for job_id, one in self.to_plan.items()}

    @cached_property
    def passers(self) -> list[SlurmJob]:
        """Jobs that may soon take GPUs past the gate."""
        return passers(self.jobs, self.context)

    @cached_property
    def later_passers(self) -> list[SlurmJob]:
        """Those that may at any time."""
        return passers(self.jobs, self.context, later=True)

    def sort_out(
        self,
        parked: Sequence[GatedJob],
        jobs: Sequence[SlurmJob],
        rooms: Mapping[Hashable, int] | None = None,
    ) -> None:
        """Assign every parked job; ``rooms``: of `LimitedKinds`. Raises SourceError if Slurm does
        not answer."""
        limited = self.pool.limits([self._as_shown(gated.job) for gated in parked])
        earlier: dict[Hashable, SlurmJob] = {}  # held by a limit: Slurm looks at these first
        self._room = task_room(jobs, self.context.config.gate.licence)
        self._rooms = rooms or {}
        self._components = components_of(jobs)
        for gated in sorted(parked, key=lambda gated: queue_order(gated.job)):
            job = gated.job
            kind = alike(job)
            unseen = self.pool.holds(job) or gated.only_deferred
            shown = (limited if unseen or job.reason == "None" else earlier).get(kind)
            if is_limit(seen := self._as_shown(job)):
                shown = None
                earlier.setdefault(kind, seen)
            if shown is not None and not (unseen and self.pool.may_try(kind)):
                self.blocked += 1
                self.waits(
                    job.id, f"a limit holds job {shown.id}, which is like it: {shown.reason}"
                )
                continue
            components = self._components.get(job.raw_id, ())
            holds = blocked_by(gated, self.context.now, components)
            if holds is not None:
                self.blocked += 1
                self.backoff.shown(job.id)
                self.waits(job.id, f"{HELD_BY}{holds}", held_by=holds)
                continue
            if self._order.blocks(job):
                self._wait(job, job.id, EARLIER_TASK)
                continue
            for job_id in task_ids(job):
                full = FULL_ARRAY if self._room.get(job.array_id, 1) <= 0 else None
                room = self._rooms.get(kind)
                if full is None and room is not None and self._tried[_place(job)] >= room:
                    full = OVER_LIMIT
                    self.blocked += 1
                if full is not None:
                    if self.to_plan.keys().isdisjoint(task_ids(job)):
                        self.waits(job.id, full)
                    self._order.waits(job)  # the planned tasks tell why the array waits
                    break
                if not self._assign(gated, job_id):
                    break

    def _as_shown(self, job: SlurmJob) -> SlurmJob:
        """A job with the reason for which it was just parked again, until Slurm shows one."""
        if job.reason != "None" or not self.backoff.failed(job.id, NO_REASON_S):
            return job
        held_by = self.backoff.held_by(job.id)
        return replace(job, reason=held_by) if held_by else job

    def waits(
        self, job_id: str, reason: str, shadow_start_s: float | None = None, **more: object
    ) -> None:
        """Add a waiting job with its reason; ``more``: times of a wait by choice, the due date."""
        entry = {"job_id": job_id, "reason": reason, "shadow_start_s": shadow_start_s}
        planned = self.to_plan.get(job_id)
        left = None if planned is None else planned.request.left
        if planned is not None and left is not None and planned.gated.original.left is None:
            # Its record does not say it.
            entry["reason"] = f"{reason}; Slurm chooses its GPUs: {left.reason}"
        self.waiting.append(entry | more | ({} if planned is None else planned.told.why))

    def planned_by_counts(self, record: GatedJob) -> bool:
        """Whether this round plans the record, or a task of it, as one that is left to Slurm."""
        return any(
            (one := self.to_plan.get(job_id)) is not None and one.request.left is not None
            for job_id in task_ids(record.job)
        )

    def of_record(self, record: SlurmJob) -> list[Candidate | None]:
        """The planned jobs of a parked record; None last if a limit or the like holds others."""
        ids = task_ids(record)
        found: list[Candidate | None] = [self.to_plan[i] for i in ids if i in self.to_plan]
        return found if len(found) == len(ids) > 0 else [*found, None]

    def in_task_order(self, plan: Plan) -> Plan:
        """The plan without paused jobs, tasks that an unplaced earlier one blocks, and jobs over a
        limit. These are no longer `to_plan`."""
        given = {assignment.job_id for assignment in plan.assignments}
        chosen = given - self.paused.keys()
        order, blocked, over, room = TaskOrder(), set[str](), set[str](), dict(self._rooms)
        for job_id, candidate in self.to_plan.items():  # in queue order
            kind = alike(candidate.gated.job) if room and job_id in chosen else None
            if order.blocks(candidate.gated.job):
                blocked.add(job_id)
            elif job_id not in chosen or room.get(kind, 1) <= 0:
                order.waits(candidate.gated.job, unsplit=candidate.unsplit)
                over |= {job_id} & chosen
            elif kind in room:
                room[kind] -= 1
        chosen -= blocked | over
        starts = tuple(a for a in plan.assignments if a.job_id in chosen)
        later = tuple(Waiting(i, self.paused.get(i, EARLIER_TASK)) for i in given - chosen - over)
        for job_id in sorted(over):
            self.waits(job_id, OVER_LIMIT)
            del self.to_plan[job_id]
        return replace(plan, assignments=starts, waiting=plan.waiting + later)

    def placeable(
        self, assignments: Sequence[Assignment]
    ) -> tuple[list[Assignment], list[GatedJob]]:
        """(Assignments that can be placed now, jobs that Slurm must try first: see `TaskOrder`)."""
        chosen = {a.job_id: self.to_plan[a.job_id].gated for a in assignments}
        untried = {job_id for job_id, gated in chosen.items() if self.is_untried(gated.job)}
        first: dict[int | None, float] = {}
        for job_id in untried:
            array = chosen[job_id].job.array_id
            first[array] = min(task_number(job_id), first.get(array, math.inf))
        for job_id, gated in chosen.items():
            if task_number(job_id) > first.get(gated.job.array_id, math.inf):
                untried.add(job_id)
        now = [a for a in assignments if a.job_id not in untried]
        return now, [gated for job_id, gated in chosen.items() if job_id in untried]

    def _assign(self, record: GatedJob, job_id: str) -> bool:
        """Assign a job or one of its tasks; False: its whole record is left to Slurm."""
        try:
            candidate = self._candidate(record, job_id)
        except CannotPlanError as exc:
            if exc.leave:
                self.leave.append((record, exc.reason))
            else:
                self._wait(record.job, job_id, exc.reason)
            return not exc.leave
        self.to_plan[job_id] = candidate
        self.licences.use(candidate.gated)
        if record.job.array_id in self._room:
            self._room[record.job.array_id] -= 1
        if self._rooms and job_id not in self.paused and job_id not in self.by_choice:
            self._tried[_place(record.job)] += 1
        return True

    def _candidate(self, record: GatedJob, job_id: str) -> Candidate:
        """A job or one of its tasks as a candidate. Raises CannotPlanError, SourceError."""
        kept = None
        if not self.backoff.knows(job_id) and job_id not in self.context.known.moved:
            kept = self.kept.get(record, job_id)
        gated = record.task(job_id) if kept is None else kept.gated
        job = gated.job
        reason = "Licenses" if self.is_untried(job) or gated.only_deferred else job.reason
        wait_s = self.backoff.wait_s(job_id, reason)
        if wait_s is not None:
            self.blocked += 1
            again = f"{self.backoff.cause(job_id)}; tried again in {wait_s:.0f} s"
            if not self.backoff.keeps(job_id):
                raise CannotPlanError(again, leave=False)
            self.paused[job_id] = again
        lacking = self.licences.lacking(gated, self.context.reservations)
        if lacking is not None:
            raise CannotPlanError(f"licence {lacking} is in use", leave=False)
        why = gated.original.left or self.unplaceable.get(job.raw_id)
        why = why or self.licences.of_nodes(gated)
        if kept is not None and why is None:
            return kept
        try:
            if why is None:
                candidate = self._translated(record, gated)
                self.kept.put(record, candidate, self.context)
                return candidate
        except CannotPlanError as exc:
            if not exc.leave:
                raise
            why = exc.reason
        except Exception as exc:
            # One job that cannot be translated must not keep the others from being placed.
            log.exception("job %s is left to Slurm: its request cannot be understood", job_id)
            why = f"its request cannot be understood: {exc}"
        try:
            return self._left(record, gated, why)
        except CannotPlanError:
            raise
        except Exception as exc:
            # Jobs before it may wait for what its gate would give it.
            first = not self.to_plan
            log.exception("job %s cannot be planned by counts: left when it is first", job_id)
            raise CannotPlanError(why if first else NOT_FIRST, leave=first) from exc

    def _left(self, record: GatedJob, gated: GatedJob, why: str) -> Candidate:
        """A job that is left to Slurm, in its turn. Raises CannotPlanError."""
        context, job = self.context, gated.job
        asked = class_of(job, gated.original, context.config, context.known.classes)
        components = tuple(self._components.get(job.raw_id, ()))
        again = self.backoff.failed(gated.id)
        request = left_request(gated, context, why, asked.app_class, components, again=again)
        told = Told({"class_from": asked.words} if asked.words else {})
        unsplit = record.job.array_tasks is not None
        return Candidate(gated, request, unsplit, None, asked.source, told, components)

    def _translated(self, record: GatedJob, gated: GatedJob) -> Candidate:
        """``gated``: the job, or the task of the record. Raises CannotPlanError."""
        job, context = gated.job, self.context
        request = to_request(gated, context)
        if request.sockets.bound and self.backoff.misplaced(gated.id):
            # Only Slurm knows all that it checks, and no job may wait longer because of us.
            why = "bound to the sockets of its GPUs, it did not start where it was placed"
            raise CannotPlanError(why, leave=True)
        told = Told()
        request = self.lives.translate(gated, request, told)
        cpus = default_cpus(job, request, context)
        unsplit = record.job.array_tasks is not None
        asked = class_of(job, gated.original, context.config, context.known.classes)
        if asked.words:
            told.why["class_from"] = asked.words
        return Candidate(gated, request, unsplit, cpus, asked.source, told)

    def is_untried(self, job: SlurmJob) -> bool:
        """Whether Slurm must try a job before it is placed; in the pool it shows no own reason."""
        return self.pool.holds(job) or self.pool.awaits(job)

    def _wait(self, job: SlurmJob, job_id: str, reason: str) -> None:
        self.waits(job_id, reason)
        self._order.waits(job)
