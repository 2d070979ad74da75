"""Placer: places jobs in three repeatable steps: prepare, read back, open the gate.

Slurm's update of a job is not atomic, and one that timed out can still be applied, so only what was
read back counts. A selector that dies in between leaves a parked job with a binding, which the next
round replaces or restores, or an open gate with a complete binding.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite

from slurm_gpu_aware.bounds import MAX_JOB_NAME
from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import marked, unmarked
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_jobs, is_changed, task_number
from slurm_gpu_aware.gate.request_forms import (
    Binding,
    Fields,
    differences,
    excluded,
    kept_tasks,
)
from slurm_gpu_aware.gate.restore import (
    clock_fields,
    open_fields,
    prepared_fields,
    read_jobs,
    restore,
    restored,
)
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.candidates import Candidate
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.job_comments import placed_text
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, components_of
from slurm_gpu_aware.slurm.updates import TRES_FIELDS, JobUpdate
from slurm_gpu_aware.store.ledger import RECORD, Decision

log = logging.getLogger(__name__)

_CHANGED = "its owner has changed it"
_WHERE = {
    **TRES_FIELDS,
    "ExcNodeList": "exc_nodes",
    "Features": "features",
    "Partition": "partitions",
    "ReqNodeList": "req_nodes",
    "ReservationName": "reservation",
}
"""Fields that say where Slurm starts a job, by the names of updates -> field of its record."""
_SIZES = (
    *("cpus", "cpus_per_task", "exclusive", "max_nodes", "memory_mb_per_cpu", "memory_mb_per_node"),
    *("min_nodes", "tasks", "time_limit_s"),
)
"""Fields that say what Slurm gives it there, and for how long."""
_AT_ONCE = 100  # jobs that one call releases; the start monitor polls them while the next call runs


@dataclass
class _Step:
    candidate: Candidate
    assignment: Assignment
    binding: Binding
    fields: Fields
    tracked: Tracked
    nodes: tuple[str, ...]  # On which it is planned to run.

    def updates(self) -> list[JobUpdate]:
        """Updates that prepare the job."""
        # With --gpus-per-task Slurm may have written the same CPUs per task from DefCpuPerGPU and
        # would ignore an update, so another number is set first. Of 2 or more, and no more than
        # needed if it can be: a pass of Slurm in between would replace 1 by its default. With our
        # marker: whatever becomes of the second update, the next round restores a marked job.
        own = [JobUpdate(self.candidate.id, self.fields)]
        fields = dict(self.fields)
        task = int(fields.get("CPUsPerTask", 0))
        if self.binding.cpus_per_gpu is not None and task:
            other = "CPUsPerTask", str(task - 1 if task > 2 else task + 1)
            marker = "AdminComment", fields["AdminComment"]
            own.insert(0, JobUpdate(self.candidate.id, (other, marker)))
        return own


@dataclass(frozen=True)
class Placer:
    """Carries out a plan."""

    client: SlurmClient
    gate: GateConfig
    tracker: JobTracker
    timer: Callable[[], float]
    clock: Callable[[], float]
    on_release: Callable[[Sequence[str]], object]  # Is called with the released jobs of each part.
    unguard: Callable[[Collection[str]], object]
    """Is called with the planned nodes of each part once it is released."""

    def place(
        self,
        assignments: Sequence[Assignment],
        candidates: Mapping[str, Candidate],
        node_names: Sequence[str],
        took_s: float,
    ) -> tuple[list[str], dict[str, str]]:
        """Place jobs; return (released jobs, job -> why it could not be placed).

        ``took_s``: planning time of the round. Raises SourceError if Slurm does not answer.
        """
        now = self.clock()
        released: list[str] = []
        failed: dict[str, str] = {}
        steps: list[_Step] = []
        with self.tracker.ledger.later():  # one transaction, before any update
            for assignment in assignments:
                candidate = candidates[assignment.job_id]
                try:
                    steps.append(self._step(candidate, assignment, node_names, took_s, now))
                except (SourceError, ValueError) as exc:
                    failed[assignment.job_id] = str(exc)
                except Exception as exc:  # one job must not keep the others from being placed
                    log.exception("job %s cannot be placed", assignment.job_id)
                    failed[assignment.job_id] = f"it cannot be placed: {exc!r:.200}"
        # A bound job keeps nodes from others until its gate opens.
        with self.tracker.ledger.later():
            ready = self._prepare(steps, failed, now)
            for start in range(0, len(ready), _AT_ONCE):
                part = self._open(ready[start : start + _AT_ONCE], failed, now)
                self.on_release(part)
                released += part
        return released, failed

    def _step(
        self,
        candidate: Candidate,
        assignment: Assignment,
        node_names: Sequence[str],
        took_s: float,
        now: float,
    ) -> _Step:
        """Decide the fields and record the decision, before any update."""
        names = tuple(node_names[i] for i in assignment.nodes)
        slots = tuple(sorted(assignment.slots[0])) if assignment.exact else None
        if slots is not None and any(tuple(sorted(s)) != slots for s in assignment.slots):
            raise ValueError("Slurm takes no different GPU indices on the nodes of one job")
        gated = candidate.gated
        if candidate.request.left is not None:
            return self._left_step(candidate, assignment, node_names, took_s, now)
        direct = gated.original.interactive and gated.job.submitted_with != "salloc"
        gpus = sum(map(len, assignment.slots)) if candidate.request.sizes else None
        clock_mhz, limit_w = assignment.clock_mhz, assignment.power_limit_w
        binding = Binding(names, slots, clock_mhz, candidate.default_cpus, gpus, direct, limit_w)
        state = assignment.why.short(placed_text(names, slots, assignment.score))
        fields, has_clock = prepared_fields(gated, binding, now, state)
        if not has_clock:
            detail = {"error": "its Extra field holds characters that cannot be kept"}
            self.tracker.ledger.event(gated.id, "clock_failed", detail, now)
        # An update that cannot be sent raises here, before any job of the round is bound.
        JobUpdate(candidate.id, fields)
        JobUpdate(candidate.id, open_fields(candidate.gated, now))
        tracked = self._track(candidate, assignment, names, slots, took_s, now)
        return _Step(candidate, assignment, binding, fields, tracked, names)

    def _left_step(
        self,
        candidate: Candidate,
        assignment: Assignment,
        node_names: Sequence[str],
        took_s: float,
        now: float,
    ) -> _Step:
        """The same for a job whose nodes and GPUs Slurm chooses: it is only kept off some nodes."""
        gated = candidate.gated
        planned = tuple(node_names[i] for i in assignment.nodes)
        off = excluded(gated.original, [node_names[i] for i in assignment.kept_off])
        job = gated.job
        comment = marked(job.admin_comment or "", JobPhase.PREPARED, job.restarts, now, "by-Slurm")
        clock = clock_fields(gated, assignment.clock_mhz, assignment.power_limit_w)
        fields = (*off, *clock, *kept_tasks(gated.original), ("AdminComment", comment))
        if gated.phase is JobPhase.PREPARED:  # an interrupted round has bound it
            names = {name for name, _ in fields}
            fields = (*(f for f in restored(gated) if f[0] not in names), *fields)
        JobUpdate(candidate.id, fields)
        nowhere = replace(assignment, nodes=(), slots=(), slowdown=1.0)
        tracked = self._track(candidate, nowhere, (), None, took_s, now)
        return _Step(candidate, assignment, Binding((), None), fields, tracked, planned)

    def _track(
        self,
        candidate: Candidate,
        assignment: Assignment,
        names: tuple[str, ...],
        slots: tuple[int, ...] | None,
        took_s: float,
        now: float,
    ) -> Tracked:
        """Record the decision, instead of an earlier one of this job."""
        self.tracker.withdraw(candidate.id, {"why": "decided anew"}, now)
        tracked = Tracked(
            self.tracker.ledger.decide(_decision(candidate, assignment, names, took_s, now)),
            JobPhase.PLANNED,
            names,
            slots,
            candidate.gated.job.restarts,
            victims=frozenset(assignment.victims),
            record=unmarked(candidate.gated.job.admin_comment or ""),
        )
        self.tracker.placed[candidate.id] = tracked
        return tracked

    def _prepare(
        self, steps: Sequence[_Step], failed: dict[str, str], now: float
    ) -> list[tuple[_Step, GatedJob]]:
        """Bind the jobs; return those that read back as set."""
        if not steps:
            return []
        refused = self.client.update_jobs([update for s in steps for update in s.updates()])
        shown = read_jobs(self.client, [step.candidate.id for step in steps])
        seen = {job.id: job for job in gated_jobs(shown, self.gate)}
        components = components_of(shown)
        ready: list[tuple[_Step, GatedJob]] = []
        broken_arrays: set[int | None] = set()
        for step in sorted(steps, key=lambda s: task_number(s.candidate.id)):
            job_id, array = step.candidate.id, step.candidate.gated.job.array_id
            gated = seen.get(job_id)
            parts = components.get(step.candidate.gated.job.raw_id, ())
            wrong = _wrong(step, gated, parts, refused.get(job_id))
            if wrong not in (None, _CHANGED) and gated is not None and gated.parked:
                self._count_refusal(gated.job, refused.get(job_id, wrong))
            if wrong is None and array in broken_arrays:
                wrong = "an earlier task of its array could not be prepared"
            if wrong is None and gated is not None:
                ready.append((step, gated))
                step.tracked.phase = JobPhase.PREPARED
                self.tracker.ledger.outcome(step.tracked.decision, JobPhase.PREPARED, now)
                if step.candidate.request.left is None:
                    self.tracker.ledger.event(job_id, "prepared", dict(step.fields), now)
                continue
            if array is not None:
                broken_arrays.add(array)
            failed[job_id] = str(wrong)
            log.warning("job %s could not be prepared: %s", job_id, wrong)
            detail = {"step": "prepare", "why": wrong}
            self.tracker.withdraw(job_id, detail, now)
            self.tracker.ledger.event(job_id, "error", detail, now)
        undo = [job for job in map(seen.get, failed) if job is not None and job.parked]
        restore(self.client, self.gate, undo, now, just_read=True)
        return ready

    def _count_refusal(self, job: SlurmJob, why: str) -> None:
        """Count a refusal by Slurm, not one by the filter, as its owner has just changed the job.

        Users who change their jobs all the time would open the gate for all.
        """
        if not is_changed(job, self.gate):
            self.tracker.refusals.refused(job.id, why, job.user)

    def _open(
        self, ready: Sequence[tuple[_Step, GatedJob]], failed: dict[str, str], now: float
    ) -> list[str]:
        """Open the gate of prepared jobs; return those that are released."""
        released = []
        refused = self.client.update_jobs(
            [JobUpdate(job.id, open_fields(job, now, JobPhase.RELEASED)) for _, job in ready]
        )
        with contained("guard of the head"):  # before, Slurm would start later jobs there
            opened = [step for step, _ in ready if step.candidate.id not in refused]
            self.unguard({name for step in opened for name in step.nodes})
        shown: dict[str, SlurmJob] = {}
        with suppress(SourceError):  # those that are open must be recorded
            again = read_jobs(self.client, list(refused)) if refused else []
            shown = {job.id: job for job in again}
        for step, gated in ready:
            job_id, tracked, slots = step.candidate.id, step.tracked, step.binding.slots
            if (why := refused.get(job_id)) is not None:
                self._count_refusal(shown.get(job_id, gated.job), why)
                # Slurm may have applied it in part: the next round reads and restores the job.
                failed[job_id] = f"its gate could not be opened: {why}"
                log.warning("job %s: %s", job_id, failed[job_id])
                self.tracker.ledger.event(job_id, "error", {"step": "open", "why": why}, now)
                continue
            self.tracker.refusals.accepted()
            tracked.phase = JobPhase.RELEASED
            tracked.released_s, tracked.released_at = self.timer(), self.clock()
            self.tracker.ledger.outcome(tracked.decision, JobPhase.RELEASED, now)
            left = step.candidate.request.left
            detail = {} if left is None else {"left_to_slurm": left.reason}
            self.tracker.ledger.event(job_id, "released", detail, now)
            if left is not None:
                log.info("job %s starts by Slurm in its turn: %s", job_id, left.reason)
                released.append(job_id)
                continue
            log.info(
                "job %s -> %s GPUs %s (%s, score %.3f)",
                job_id,
                ",".join(step.binding.nodes),
                list(slots) if slots is not None else "by Slurm",
                step.assignment.policy,
                step.assignment.score,
            )
            released.append(job_id)
        return released


def _decision(
    candidate: Candidate, assignment: Assignment, names: tuple[str, ...], took_s: float, now: float
) -> Decision:
    request, job = candidate.request, candidate.gated.job
    asked = {
        "gpus": request.gpus,
        "gpus_range": f"{request.sizes[0]}-{request.sizes[-1]}" if request.sizes else None,
        "class": request.app_class,
        "class_from": candidate.class_from,
        "min_nodes": request.min_nodes,
        "max_nodes": request.max_nodes,
        "gpus_per_node": request.gpus_per_node,
        "bw": "high" if request.bandwidth_sensitive else "low",
        "pattern": request.pattern,
        "policy": request.policy.name,
        "freq": request.clock,
        "exclusive": request.nodes.whole,
        "comment": job.comment,
        "name": job.name[:MAX_JOB_NAME],
        "account": job.account,
        "waits_since_s": request.waits_since_s,
        "time_limit_s": request.time_limit_s if isfinite(request.time_limit_s) else None,
        **candidate.told.asked,
    }
    return Decision(
        job_id=candidate.id,
        user=job.user,
        submitted_at=job.submit_s,
        decided_at=now,
        asked={key: value for key, value in asked.items() if value is not None},
        policy=assignment.policy,
        nodes=list(names),
        slots=[list(s) for s in assignment.slots],
        score=assignment.score,
        level=assignment.level,
        slowdown=assignment.slowdown,
        clock_mhz=assignment.clock_mhz,
        exact=assignment.exact,
        victims=assignment.victims,
        why={**assignment.why.plain(), **candidate.told.why},
        took_ms=1000.0 * took_s,
        state=JobPhase.PLANNED,
        restarts=job.restarts,
        outcome={RECORD: unmarked(job.admin_comment or "")},
    )


def _wrong(
    step: _Step, seen: GatedJob | None, components: Sequence[SlurmJob], refusal: str | None
) -> str | None:
    """Why the gate of a job must not be opened; None: the job shows what was set.

    ``components``: the later ones of a heterogeneous job, as read back.
    """
    if seen is None:
        return refusal or "it is gone"
    if not seen.parked:
        return f"it is {seen.job.state} and no longer parked"
    if step.candidate.request.left is not None and _is_changed(step, seen.job, components):
        return _CHANGED
    # Some fields cannot be read back (NumNodes, NumCPUs), so a refusal counts in any case.
    wrong = differences(seen.job, step.fields) + ([refusal] if refusal else [])
    return "; ".join(wrong) or None


def _is_changed(step: _Step, seen: SlurmJob, components: Sequence[SlurmJob]) -> bool:
    """Whether a job of which Slurm chooses the nodes is not the one that the round has planned.

    Of an update that Slurm refuses the fields stay that it applied before, without an owner's note.
    One of a later component alone has none: there all counts that makes the plan. The update that
    was just sent has marked all components, so the filter refuses any further one.
    """
    ours, planned = dict(step.fields), step.candidate
    where = [name for field, name in _WHERE.items() if field not in ours]
    if _values([seen], where) != _values([planned.gated.job], where):
        return True
    # Tasks of the first one reach all, and Slurm counts CPUs and nodes by them.
    set_by_us = {"cpus", "max_nodes", "tasks"} if "NumTasks" in ours else set()
    both = [*where, *(name for name in _SIZES if name not in set_by_us)]
    return _values(components, both) != _values(planned.components, both)


def _values(jobs: Sequence[SlurmJob], names: Sequence[str]) -> dict[str, list[object]]:
    """Job -> the values of these fields; the order of node names does not count."""
    values = {job.id: [getattr(job, name) for name in names] for job in jobs}
    return {i: [set(v) if isinstance(v, tuple) else v for v in each] for i, each in values.items()}
