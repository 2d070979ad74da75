"""Moves under way: jobs that were requeued to better GPUs and do not run there yet.

A move is written to the ledger (``move_begun``) before Slurm is asked, and when the job runs again
(``moved``). A selector that dies in between leaves a running job, or one in Slurm's queue that
starts again where it was, after Slurm's delay of requeued jobs; its successor reads the ledger and
carries on.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slurm_gpu_aware.admission.snapshot import Hold
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.move_settings import RATE_S
from slurm_gpu_aware.selector.holding_pool import PLANNABLE
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import ENDED, SlurmJob
from slurm_gpu_aware.slurm.updates import JobUpdate

__all__ = ["MovesUnderWay", "UnderWay"]

log = logging.getLogger(__name__)

_NOT_REQUEUED_S = 20.0  # a job that still runs after this was not requeued
_GIVEN_UP_S = 3600.0  # after this a job that is not back waits like any other
_MEASURED = 20  # moves of the site of which the median restart counts


@dataclass(frozen=True)
class UnderWay:
    """A move that has begun and not ended; in the ledger the detail of ``move_begun``."""

    restarts: int
    """Slurm's count before the move."""
    nodes: Sequence[str]
    """New nodes; ``slots`` are the GPUs on each of them."""
    slots: Sequence[int]
    left: Sequence[str]
    """Nodes that it leaves."""
    cpus_per_node: int
    memory_mb_per_node: int
    limit_end_s: float | None
    """End by its time limit, Unix seconds; None: no limit."""
    ends_s: float
    """Expected end, Unix seconds."""
    why: Mapping[str, Any]
    """Account of the move: ``summary`` and ``moved``."""
    power_w: float = 0.0
    """Power above that of idle GPUs that is kept for it; 0: no power limit was in force."""
    due_s: float | None = None
    """Due date, Unix seconds, as Slurm's submission is anew after a requeue; None: none."""
    work_done: float = 0.0
    """Work that the job with a due date has done, in iterations of its size table."""

    def kept(self, job_id: str) -> Hold:
        """The hold that keeps the new GPUs for the job."""
        return Hold(
            job_id=job_id,
            nodes=tuple(self.nodes),
            slots=tuple(self.slots),
            gpus_per_node=len(self.slots),
            cpus_per_node=self.cpus_per_node,
            memory_mb_per_node=self.memory_mb_per_node,
            end_s=math.inf if self.limit_end_s is None else self.limit_end_s,
        )


@dataclass
class MovesUnderWay:
    """The moves of a site that have begun, and what earlier ones took."""

    client: SlurmClient
    ledger: LedgerWriter
    jobs: dict[str, UnderWay] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    """Begins of the moves that count for the rate, Unix seconds."""
    began: dict[str, float] = field(default_factory=dict)
    """Job -> begin of its last move, Unix seconds."""
    ends_s: dict[str, float] = field(default_factory=dict)
    """Job -> its end as expected at its last move, Unix seconds."""
    due: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Job with a due date -> that, Unix seconds, and its work done at its last move."""
    _took: dict[str, float] = field(default_factory=dict)
    """Job -> longest time from a requeue to the start; the last one moved comes last."""

    def load(self, since: float, placed: Iterable[str] = ()) -> None:
        """Read moves that began since a Unix time from the ledger.

        ``placed``: jobs of which all moves count for their due dates.
        """
        for job_id in placed:
            for event in self.ledger.events(job_id):
                if event.kind == "move_begun" and (due_s := event.detail.get("due_s")) is not None:
                    self.due[job_id] = due_s, float(event.detail.get("work_done") or 0.0)
        for event in self.ledger.events_since(("move_begun", "moved", "error"), since):
            job_id, detail = event.job_id, event.detail
            if event.kind == "move_begun":
                try:
                    self._note(job_id, UnderWay(**detail), event.at)
                except TypeError:  # of another release
                    log.warning("the move of job %s cannot be read", job_id)
            elif event.kind == "moved":
                self.jobs.pop(job_id, None)
                self._measure(job_id, float(detail.get("after_s") or 0.0))
            elif detail.get("step") == "move":
                self.jobs.pop(job_id, None)

    def begin(self, job_id: str, move: UnderWay, now: float) -> str | None:
        """Record a move and requeue the job; return why Slurm refuses. Raises SourceError."""
        self.ledger.event(job_id, "move_begun", asdict(move), now)
        self._note(job_id, move, now)
        why = self.client.requeue_job(job_id)
        if why is not None:
            self._fail(job_id, f"Slurm does not requeue it: {why}", now)
        return why

    def restart_s(self, job_id: str) -> float:
        """Time that a requeue and start took: of the job, else the median of the site; 0: no move.

        What the job does before its first step and after its last checkpoint is not in it.
        """
        known = list(self._took.values())[-_MEASURED:]
        return self._took.get(job_id, statistics.median(known) if known else 0.0)

    def settle(self, gated: Sequence[GatedJob], now: float) -> list[GatedJob]:
        """Follow the moves; return the jobs, those that are back without Slurm's delay.

        Slurm lets a requeued job wait for two minutes. Raises SourceError.
        """
        if not self.jobs:
            return list(gated)
        known = {job.id: job for job in gated}
        for job_id in list(self.jobs):
            self._follow(job_id, known.get(job_id), now)
        back = {
            job_id: replace(job, job=replace(job.job, eligible_s=now, reason="Licenses"))
            for job_id in self.jobs
            if (job := known.get(job_id)) is not None
            and job.parked
            and job.job.reason == "BeginTime"
            and (job.job.eligible_s or 0.0) <= self.began[job_id] + _GIVEN_UP_S
        }
        updates = [JobUpdate(job_id, (("StartTime", "now"),)) for job_id in back]
        for job_id, why in self.client.update_jobs(updates).items():
            log.warning("moved job %s waits for Slurm's delay of requeued jobs: %s", job_id, why)
            del back[job_id]
        return [back.get(job.id, job) for job in gated]

    def kept(self, parked: Iterable[GatedJob], now: float) -> list[Hold]:
        """Holds of the new GPUs of jobs that a round cannot place yet.

        Slurm delays a requeued job some time before it gives that as the reason.
        """
        back = {gated.id for gated in parked if not _delayed(gated.job, now)}
        return [move.kept(job_id) for job_id, move in self.jobs.items() if job_id not in back]

    @property
    def power_w(self) -> dict[str, float]:
        """Job -> power above that of idle GPUs that is kept for it, of those that have some."""
        return {job_id: move.power_w for job_id, move in self.jobs.items() if move.power_w > 0}

    def targets(self, nodes: Sequence[str]) -> dict[str, Assignment]:
        """Job -> its new GPUs, by position in ``nodes``; for `planning.moved.place_moved`."""
        places = {name: i for i, name in enumerate(nodes)}
        found = {}
        for job_id, move in self.jobs.items():
            chosen = tuple(sorted(places[name] for name in move.nodes if name in places))
            slots = (tuple(move.slots),) * len(chosen)
            found[job_id] = Assignment(
                job_id, chosen, slots, policy="", score=0.0, level="", slowdown=0.0, why=move.why
            )
        return found

    def _note(self, job_id: str, move: UnderWay, at: float) -> None:
        self.jobs[job_id], self.began[job_id], self.ends_s[job_id] = move, at, move.ends_s
        if move.due_s is not None:
            self.due[job_id] = move.due_s, move.work_done
        self.times = [*(time for time in self.times if at - time < RATE_S), at]

    def _follow(self, job_id: str, gated: GatedJob | None, now: float) -> None:
        """Note that a job runs again, has ended, or was not requeued."""
        move, began = self.jobs[job_id], self.began[job_id]
        if gated is None or gated.job.state in ENDED or now - began > _GIVEN_UP_S:
            del self.jobs[job_id]
        elif gated.job.state != "RUNNING":
            return
        elif gated.job.restarts > move.restarts:
            del self.jobs[job_id]
            started = gated.job.start_s or now
            after_s = max(0.0, started - began)
            self._measure(job_id, after_s)
            detail = {"after_s": after_s, "nodes": list(gated.job.nodes)}
            self.ledger.event(job_id, "moved", detail, now)
            log.info("job %s runs again, %.0f s after its move began", job_id, after_s)
        elif now - began > _NOT_REQUEUED_S:
            self._fail(job_id, "it was not requeued", now)

    def _fail(self, job_id: str, why: str, now: float) -> None:
        self.jobs.pop(job_id, None)
        self.ledger.event(job_id, "error", {"step": "move", "why": why}, now)
        log.warning("job %s is not moved: %s", job_id, why)

    def _measure(self, job_id: str, after_s: float) -> None:
        longest = max(after_s, self._took.pop(job_id, 0.0))
        if math.isfinite(longest):
            self._took[job_id] = longest


def _delayed(job: SlurmJob, now: float) -> bool:
    """Whether nothing but Slurm's delay of requeued jobs holds a job."""
    return job.reason in PLANNABLE | {"BeginTime"} and (job.eligible_s or 0.0) > now
