"""Placing in three steps, each of which may be repeated: prepare, read back, open the gate.

Slurm's update of a job is not atomic and one that timed out may still be applied, so nothing is
believed that was not read back. A selector that dies in between leaves either a parked job with
pins, which the next round places anew or undoes, or an open gate, whose pins are right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.holding_pool import left_fields, open_fields
from slurm_gpu_aware.gate.job_marker import PREPARED, RELEASED, marked, unmarked
from slurm_gpu_aware.gate.licence_gate import is_parked
from slurm_gpu_aware.gate.request_forms import Pins, differences, placed_fields
from slurm_gpu_aware.gate.restore import extra_with_clock, undo_fields
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.job_tracker import Tracked, Watch
from slurm_gpu_aware.selector.ledger_writer import Books, Entry
from slurm_gpu_aware.selector.orphans import RECORD
from slurm_gpu_aware.selector.recovery import in_parts
from slurm_gpu_aware.selector.start_monitor import Looks
from slurm_gpu_aware.slurm.client import JobUpdate, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["Candidate", "Placer", "extra_with_clock", "task_number", "task_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A parked job, or one task of a parked array, that a round may place."""

    id: str
    job: SlurmJob
    original: OriginalRequest
    request: Request
    unsplit: bool = False
    """Still part of its array's common record."""
    default_cpus: int | None = None
    """CPUs with each GPU, where ``DefCpuPerGPU`` holds (`Pins.cpus_per_gpu`)."""


@dataclass
class _Step:
    candidate: Candidate
    assignment: Assignment
    pins: Pins
    fields: tuple[tuple[str, str], ...]
    tracked: Tracked

    def updates(self) -> list[JobUpdate]:
        """What prepares the job.

        For ``--gpus-per-task`` Slurm writes CPUs per task out of ``DefCpuPerGPU`` into the job by
        itself. The same number from us changes nothing then, and does not count as given: so it
        is set to 1 before.
        """
        own = [JobUpdate(self.candidate.id, self.fields)]
        if self.pins.cpus_per_gpu is not None and "CPUsPerTask" in dict(self.fields):
            own.insert(0, JobUpdate(self.candidate.id, (("CPUsPerTask", "1"),)))
        return own


class Placer:
    """Carries out a plan."""

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        books: Books,
        watch: Watch,
        looks: Looks,
        timer: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._config = config
        self._books = books
        self._watch = watch
        self._looks = looks
        self._timer = timer
        self._clock = clock

    def place(
        self,
        assignments: Sequence[Assignment],
        candidates: Mapping[str, Candidate],
        node_names: Sequence[str],
        took_s: float,
        now: float,
    ) -> tuple[list[str], dict[str, str]]:
        """Place jobs; return (ids whose gate was opened, reason for each that failed).

        Raises SourceError if Slurm does not answer; jobs are then parked, prepared or open, and
        the next round sees which.
        """
        failed: dict[str, str] = {}
        steps: list[_Step] = []
        for assignment in assignments:
            self._looks.if_due()
            candidate = candidates[assignment.job_id]
            try:
                steps.append(self._step(candidate, assignment, node_names, took_s, now))
            except (SourceError, ValueError) as exc:
                failed[assignment.job_id] = str(exc)
        with self._books.later():  # what is pinned keeps nodes from others until it is open
            return self._prepare_and_open(steps, failed, now), failed

    def _prepare_and_open(
        self, steps: Sequence[_Step], failed: dict[str, str], now: float
    ) -> list[str]:
        refused: dict[str, str] = {}
        for part in in_parts([u for s in steps for u in s.updates()]):
            self._looks.if_due()
            refused |= self._client.update_jobs(part)
        self._looks.if_due()
        seen = {job.id: job for job in self._looks.read_all()} if steps else {}
        ready: list[_Step] = []
        broken_arrays: set[int] = set()
        for step in sorted(steps, key=lambda s: task_number(s.candidate.id)):
            array = step.candidate.job.array_id
            wrong = self._wrong(step, seen.get(step.candidate.id), refused)
            if wrong is None and array in broken_arrays:
                wrong = "an earlier task of its array could not be prepared"
            if wrong is not None and array is not None:
                broken_arrays.add(array)
            if wrong is None:
                ready.append(step)
                step.tracked.state = "prepared"
                self._books.outcome(step.tracked.decision, "prepared", now)
                self._books.event(step.candidate.id, "prepared", dict(step.fields), now)
            else:
                failed[step.candidate.id] = wrong
        self._undo([s for s in steps if s.candidate.id in failed], seen, failed, now)
        return self._open(ready, seen, failed, now)

    def _step(
        self,
        candidate: Candidate,
        assignment: Assignment,
        node_names: Sequence[str],
        took_s: float,
        now: float,
    ) -> _Step:
        """Decide the fields and write the decision down, before Slurm hears of it."""
        names = tuple(node_names[i] for i in assignment.nodes)
        slots = tuple(sorted(assignment.slots[0])) if assignment.exact else None
        if slots is not None and any(tuple(sorted(s)) != slots for s in assignment.slots):
            raise ValueError("different GPU indices on its nodes cannot be told to Slurm")
        pins = Pins(names, slots, assignment.clock_mhz, candidate.default_cpus)
        job = candidate.job
        fields = placed_fields(candidate.original, pins) + left_fields(job)
        if pins.clock_mhz is None and job.tres_freq != candidate.original.tres_freq:
            fields += (("TresFreq", candidate.original.tres_freq or ""),)
        extra = extra_with_clock(job.extra, pins.clock_mhz, pins.slots)
        if extra is None:
            detail = {"error": "its Extra field holds characters that cannot be kept"}
            self._books.event(candidate.id, "clock_failed", detail, now)
        elif extra != (job.extra or ""):
            fields += (("Extra", extra),)
        comment = marked(job.admin_comment or "", PREPARED, job.restarts, now)
        fields += (("AdminComment", comment),)
        # What cannot be sent raises here, before anything of the round is pinned.
        JobUpdate(candidate.id, fields)
        JobUpdate(candidate.id, open_fields(job, candidate.original, now))
        tracked = Tracked(None, "planned", names, slots, job.restarts)
        tracked.victims = frozenset(assignment.victims)
        tracked.decision = self._decide(candidate, assignment, names, took_s, now)
        previous = self._watch.placed.get(candidate.id)
        if previous is not None:
            self._books.outcome(previous.decision, "reparked", now, {"why": "decided anew"})
        self._watch.placed[candidate.id] = tracked
        return _Step(candidate, assignment, pins, fields, tracked)

    def _decide(
        self,
        candidate: Candidate,
        assignment: Assignment,
        names: tuple[str, ...],
        took_s: float,
        now: float,
    ) -> Entry:
        from slurm_gpu_aware.store.ledger import Decision

        request, job = candidate.request, candidate.job
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
        return self._books.decide(
            Decision(
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
                state="planned",
                restarts=job.restarts,
                outcome={RECORD: unmarked(job.admin_comment or "")},
            )
        )

    def _wrong(self, step: _Step, job: SlurmJob | None, refused: Mapping[str, str]) -> str | None:
        """Why a prepared job must not be opened; None: it shows what we set."""
        if job is None:
            return refused.get(step.candidate.id, "it is gone")
        if not is_parked(job, self._config.gate):
            return f"it is {job.state} and no longer parked"
        # Not all that was set can be read back (NumNodes, NumCPUs): a refusal counts in any case.
        said = refused.get(step.candidate.id)
        wrong = [*differences(job, step.fields), *([said] if said else [])]
        return "; ".join(wrong) or None

    def _undo(
        self,
        steps: Sequence[_Step],
        seen: Mapping[str, SlurmJob],
        failed: Mapping[str, str],
        now: float,
    ) -> None:
        updates = []
        for step in steps:
            job_id = step.candidate.id
            log.warning("job %s could not be prepared: %s", job_id, failed[job_id])
            self._books.outcome(step.tracked.decision, "failed", now, {"why": failed[job_id]})
            self._books.event(job_id, "error", {"step": "prepare", "why": failed[job_id]}, now)
            self._watch.placed.pop(job_id, None)
            job = seen.get(job_id)
            if job is not None and is_parked(job, self._config.gate):
                try:
                    fields = undo_fields(job, step.candidate.original)
                    updates += [JobUpdate(job_id, fields)] if fields else []
                except (SourceError, ValueError) as exc:
                    log.warning("job %s cannot be given back its request: %s", job_id, exc)
        self._client.update_jobs(updates)

    def _open(
        self,
        steps: Sequence[_Step],
        seen: Mapping[str, SlurmJob],
        failed: dict[str, str],
        now: float,
    ) -> list[str]:
        updates = []
        for step in steps:
            job = seen[step.candidate.id]
            comment = marked(job.admin_comment or "", RELEASED, job.restarts, now)
            fields = (
                ("AdminComment", comment),
                *open_fields(job, step.candidate.original, now),
            )
            updates.append(JobUpdate(step.candidate.id, fields))
        opened: list[str] = []
        place = 0
        for part in in_parts(updates):
            self._looks.if_due()
            refused = self._client.update_jobs(part)
            now_open = self._opened(steps[place : place + len(part)], refused, failed, now)
            self._looks.opened(now_open)
            opened += now_open
            place += len(part)
        return opened

    def _opened(
        self,
        steps: Sequence[_Step],
        refused: Mapping[str, str],
        failed: dict[str, str],
        now: float,
    ) -> list[str]:
        """Write down which gates were opened, before a look may park one of these jobs again."""
        opened: list[str] = []
        for step in steps:
            job_id = step.candidate.id
            why = refused.get(job_id)
            if why is not None:
                # What Slurm did of it is known when it is read: the next round undoes its pins.
                failed[job_id] = f"its gate could not be opened: {why}"
                log.warning("job %s: %s", job_id, failed[job_id])
                self._books.event(job_id, "error", {"step": "open", "why": why}, now)
                continue
            step.tracked.state = "released"
            step.tracked.opened = self._timer()
            step.tracked.opened_at = self._clock()
            self._books.outcome(step.tracked.decision, "released", now)
            self._books.event(job_id, "released", {}, now)
            log.info(
                "job %s -> %s GPUs %s (%s, score %.3f)",
                job_id,
                ",".join(step.pins.nodes),
                list(step.pins.slots) if step.pins.slots is not None else "by Slurm",
                step.assignment.policy,
                step.assignment.score,
            )
            opened.append(job_id)
        return opened


def task_number(job_id: str) -> int:
    """Number of an array's task; -1 for a job that is none."""
    _, _, task = job_id.partition("_")
    return int(task) if task else -1


def task_of(job: SlurmJob, job_id: str) -> SlurmJob:
    """The unsplit array record as the record of one of its tasks."""
    return replace(job, id=job_id, array_tasks=None)
