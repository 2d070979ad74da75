"""Placer: places jobs in three repeatable steps: prepare, read back, open the gate.

Slurm's update of a job is not atomic, and one that timed out can still be applied, so only what was
read back counts. A selector that dies in between leaves a parked job with a binding, which the next
round replaces or restores, or an open gate with a complete binding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_jobs
from slurm_gpu_aware.gate.holding_pool import leave_pool_fields
from slurm_gpu_aware.gate.job_marker import marked
from slurm_gpu_aware.gate.release import extra_with_clock, open_fields, read_jobs, release
from slurm_gpu_aware.gate.request_forms import Binding, Fields, differences, placed_fields
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.store.ledger import RECORD, Decision

__all__ = ["Candidate", "Placed", "Placer", "task_number"]

log = logging.getLogger(__name__)

_AT_ONCE = 100
"""Jobs that one call releases; the start monitor polls them while the next call runs."""


@dataclass(frozen=True)
class Candidate:
    """A parked job, or one task of a parked array, that a round may place."""

    gated: GatedJob
    request: Request
    unsplit: bool = False
    """Whether it is a task of an unsplit array record."""
    default_cpus: int | None = None
    """CPUs with each GPU if ``DefCpuPerGPU`` applies (`Binding.cpus_per_gpu`)."""

    @property
    def id(self) -> str:
        """Id as users type it."""
        return self.gated.id


@dataclass
class Placed:
    """Outcome of a plan's jobs."""

    opened: list[str]
    """Released jobs."""
    failed: dict[str, str]
    """Job -> why it could not be placed."""


@dataclass
class _Step:
    candidate: Candidate
    assignment: Assignment
    binding: Binding
    fields: Fields
    tracked: Tracked

    def updates(self) -> list[JobUpdate]:
        """Updates that prepare the job.

        For ``--gpus-per-task`` Slurm itself writes CPUs per task from ``DefCpuPerGPU`` into the
        job. An update to the same number is ignored and does not count as given, so the number is
        set to 1 first.
        """
        own = [JobUpdate(self.candidate.id, self.fields)]
        if self.binding.cpus_per_gpu is not None and "CPUsPerTask" in dict(self.fields):
            own.insert(0, JobUpdate(self.candidate.id, (("CPUsPerTask", "1"),)))
        return own


class Placer:
    """Carries out a plan."""

    def __init__(
        self,
        client: SlurmClient,
        gate: GateConfig,
        ledger: LedgerWriter,
        tracker: JobTracker,
        timer: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        *,
        opened: Callable[[Sequence[str]], object] = lambda job_ids: None,
    ) -> None:
        """``opened`` is called with the released jobs of each part."""
        self._client = client
        self._gate = gate
        self._ledger = ledger
        self._tracker = tracker
        self._timer = timer
        self._clock = clock
        self._opened = opened

    def place(
        self,
        assignments: Sequence[Assignment],
        candidates: Mapping[str, Candidate],
        node_names: Sequence[str],
        took_s: float,
    ) -> Placed:
        """Place jobs. ``took_s``: planning time of the round.

        Raises SourceError if Slurm does not answer; the next round then reads which jobs are
        parked, prepared or open.
        """
        now = self._clock()
        placed = Placed([], {})
        steps: list[_Step] = []
        for assignment in assignments:
            candidate = candidates[assignment.job_id]
            try:
                steps.append(self._step(candidate, assignment, node_names, took_s, now))
            except (SourceError, ValueError) as exc:
                placed.failed[assignment.job_id] = str(exc)
        with self._ledger.later():  # a bound job keeps nodes from others until its gate opens
            ready = self._prepare(steps, placed.failed, now)
            for start in range(0, len(ready), _AT_ONCE):
                self._open(ready[start : start + _AT_ONCE], placed, now)
        return placed

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
        binding = Binding(names, slots, assignment.clock_mhz, candidate.default_cpus)
        fields = self._fields(candidate.gated, binding, now)
        # An update that cannot be sent raises here, before any job of the round is bound.
        JobUpdate(candidate.id, fields)
        JobUpdate(candidate.id, open_fields(candidate.gated, now))
        self._tracker.withdraw(candidate.id, {"why": "decided anew"}, now)
        tracked = Tracked(
            self._ledger.decide(_decision(candidate, assignment, names, took_s, now)),
            JobPhase.PLANNED,
            names,
            slots,
            candidate.gated.job.restarts,
            victims=frozenset(assignment.victims),
        )
        self._tracker.placed[candidate.id] = tracked
        return _Step(candidate, assignment, binding, fields, tracked)

    def _fields(self, gated: GatedJob, binding: Binding, now: float) -> Fields:
        job, original = gated.job, gated.original
        fields = placed_fields(original, binding) + leave_pool_fields(job)
        if binding.clock_mhz is None and job.tres_freq != original.tres_freq:
            fields += (("TresFreq", original.tres_freq or ""),)
        extra = extra_with_clock(job.extra, binding.clock_mhz, binding.slots)
        if extra is None:
            detail = {"error": "its Extra field holds characters that cannot be kept"}
            self._ledger.event(gated.id, "clock_failed", detail, now)
        elif extra != (job.extra or ""):
            fields += (("Extra", extra),)
        comment = marked(job.admin_comment or "", JobPhase.PREPARED, job.restarts, now)
        return (*fields, ("AdminComment", comment))

    def _prepare(
        self, steps: Sequence[_Step], failed: dict[str, str], now: float
    ) -> list[tuple[_Step, GatedJob]]:
        """Bind the jobs; return those that read back as set."""
        if not steps:
            return []
        refused = self._client.update_jobs([update for s in steps for update in s.updates()])
        shown = read_jobs(self._client, [step.candidate.id for step in steps])
        seen = {job.id: job for job in gated_jobs(shown, self._gate)}
        ready: list[tuple[_Step, GatedJob]] = []
        broken_arrays: set[int] = set()
        for step in sorted(steps, key=lambda s: task_number(s.candidate.id)):
            job_id, array = step.candidate.id, step.candidate.gated.job.array_id
            gated = seen.get(job_id)
            wrong = _wrong(step, gated, refused)
            if wrong is None and array in broken_arrays:
                wrong = "an earlier task of its array could not be prepared"
            if wrong is None and gated is not None:
                ready.append((step, gated))
                step.tracked.phase = JobPhase.PREPARED
                self._ledger.outcome(step.tracked.decision, JobPhase.PREPARED, now)
                self._ledger.event(job_id, "prepared", dict(step.fields), now)
                continue
            if array is not None:
                broken_arrays.add(array)
            failed[job_id] = str(wrong)
            log.warning("job %s could not be prepared: %s", job_id, wrong)
            self._tracker.withdraw(job_id, {"step": "prepare", "why": wrong}, now)
            self._ledger.event(job_id, "error", {"step": "prepare", "why": wrong}, now)
        undo = [job for job in map(seen.get, failed) if job is not None and job.closed]
        release(self._client, self._gate, undo, now, just_read=True)
        return ready

    def _open(self, ready: Sequence[tuple[_Step, GatedJob]], placed: Placed, now: float) -> None:
        """Open the gate of prepared jobs."""
        updates, before = [], len(placed.opened)
        for step, seen in ready:
            comment = marked(
                seen.job.admin_comment or "", JobPhase.RELEASED, seen.job.restarts, now
            )
            fields = (("AdminComment", comment), *open_fields(seen, now))
            updates.append(JobUpdate(step.candidate.id, fields))
        refused = self._client.update_jobs(updates)
        for step, _ in ready:
            job_id = step.candidate.id
            why = refused.get(job_id)
            if why is not None:
                # Slurm may have applied it in part: the next round reads and restores the job.
                placed.failed[job_id] = f"its gate could not be opened: {why}"
                log.warning("job %s: %s", job_id, placed.failed[job_id])
                self._ledger.event(job_id, "error", {"step": "open", "why": why}, now)
                continue
            step.tracked.phase = JobPhase.RELEASED
            step.tracked.opened = self._timer()
            step.tracked.opened_at = self._clock()
            self._ledger.outcome(step.tracked.decision, JobPhase.RELEASED, now)
            self._ledger.event(job_id, "released", {}, now)
            log.info(
                "job %s -> %s GPUs %s (%s, score %.3f)",
                job_id,
                ",".join(step.binding.nodes),
                list(step.binding.slots) if step.binding.slots is not None else "by Slurm",
                step.assignment.policy,
                step.assignment.score,
            )
            placed.opened.append(job_id)
        self._opened(placed.opened[before:])


def _decision(
    candidate: Candidate,
    assignment: Assignment,
    names: tuple[str, ...],
    took_s: float,
    now: float,
) -> Decision:
    """The ledger's record of a decision."""
    request, job = candidate.request, candidate.gated.job
    asked = {
        "gpus": request.gpus,
        "class": request.app_class,
        "min_nodes": request.min_nodes,
        "max_nodes": request.max_nodes,
        "gpus_per_node": request.gpus_per_node,
        "bw": "high" if request.bandwidth_sensitive else "low",
        "pattern": request.pattern,
        "policy": request.policy,
        "freq": request.clock,
        "exclusive": request.whole_node,
        "comment": job.comment,
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
        why=assignment.why,
        took_ms=1000.0 * took_s,
        state=JobPhase.PLANNED,
        restarts=job.restarts,
        outcome={RECORD: candidate.gated.record},
    )


def _wrong(step: _Step, seen: GatedJob | None, refused: Mapping[str, str]) -> str | None:
    """Why a prepared job must not be opened; None: it shows what was set."""
    if seen is None:
        return refused.get(step.candidate.id, "it is gone")
    if not seen.closed:
        return f"it is {seen.job.state} and no longer parked"
    # Some fields cannot be read back (NumNodes, NumCPUs), so a refusal counts in any case.
    refusal = refused.get(step.candidate.id)
    wrong = [*differences(seen.job, step.fields), *([refusal] if refusal else [])]
    return "; ".join(wrong) or None


def task_number(job_id: str) -> int:
    """Number of an array task; -1 for another job."""
    _, _, task = job_id.partition("_")
    return int(task) if task else -1
