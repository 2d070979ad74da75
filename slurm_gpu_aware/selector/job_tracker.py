"""Job tracker: what became of the jobs that were placed, written into the ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.holding_pool import lost_reservation
from slurm_gpu_aware.gate.job_marker import BOUND
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.names import index_type
from slurm_gpu_aware.selector.ledger_writer import Entry, LedgerWriter
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob

__all__ = ["JobTracker", "Tracked"]

log = logging.getLogger(__name__)

_TOLD = frozenset({"opened_by_hand", "started", "ended"})
"""Last events of a job without a decision after which nothing has to be told of its opening."""


@dataclass
class Tracked:
    """A job with an open decision."""

    decision: Entry | None
    """In the ledger; None: it is not there."""
    phase: JobPhase
    nodes: tuple[str, ...]
    slots: tuple[int, ...] | None
    """None: Slurm picks the GPUs."""
    restarts: int
    opened: float | None = None
    """When this selector opened the gate, in seconds of a clock that is never set."""
    opened_at: float | None = None
    """The same, Unix seconds."""
    raw_id: int | None = None
    """Slurm's number of its record, once it was seen placed."""
    victims: frozenset[str] = frozenset()
    """Jobs that have to go first; Slurm may give them time for that."""


@dataclass
class JobTracker:
    """Placed jobs by id, from the ledger and from what Slurm shows.

    The start monitor, in a thread of its own, withdraws decisions; all else is the main thread's.
    """

    ledger: LedgerWriter
    placed: dict[str, Tracked] = field(default_factory=dict)
    _seen_parked: set[str] = field(default_factory=set)
    _seen_alone: dict[str, str] = field(default_factory=dict)
    """State of the jobs without an open decision, when they were looked at last."""

    def load(self) -> None:
        """Take up the decisions that a previous selector left open."""
        for decision in self.ledger.open_decisions():
            slots = tuple(decision.slots[0]) if decision.exact and decision.slots else None
            self.placed[decision.job_id] = Tracked(
                Entry(decision.id),
                JobPhase(decision.state),
                tuple(decision.nodes),
                slots,
                decision.restarts,
                victims=frozenset(decision.victims),
            )

    def withdraw(self, job_id: str, detail: Mapping[str, Any], now: float) -> None:
        """The job's binding is gone: its open decision, if it has one, comes to nothing."""
        tracked = self.placed.pop(job_id, None)
        if tracked is not None:
            self.ledger.outcome(tracked.decision, JobPhase.WAITING, now, detail)

    def observe(
        self,
        jobs: Iterable[SlurmJob],
        gated: Iterable[GatedJob],
        now: float,
        unread: Set[int] = frozenset(),
    ) -> None:
        """Compare with what Slurm shows and write down what changed.

        ``jobs``: all; ``gated``: ours among them. ``unread``: records that are there but could
        not be read; their jobs are not gone.
        """
        known = {job.id: job for job in jobs}
        closed: set[str] = set()
        for ours in gated:
            if ours.closed:
                closed.add(ours.id)
                self._parked(ours.job, now)
            elif ours.id not in self.placed and self._seen_alone.get(ours.id) != ours.job.state:
                self._seen_alone[ours.id] = ours.job.state
                self._alone(ours, now)
        self._seen_parked.intersection_update(known)
        for job_id in self._seen_alone.keys() - known.keys():
            del self._seen_alone[job_id]
        for job_id, tracked in list(self.placed.items()):
            found = known.get(job_id)
            if found is not None:
                tracked.raw_id = found.raw_id
            if found is None and unread and (tracked.raw_id is None or tracked.raw_id in unread):
                continue
            if found is None:
                self._ended(job_id, tracked, {"state": "unknown", "why": "gone from Slurm"}, now)
            elif found.state in HOLDING:
                self._started(found, tracked, now)
            elif found.state != "PENDING":
                if tracked.phase is not JobPhase.STARTED:
                    self._started(found, tracked, now)
                self._ended(job_id, tracked, {"state": found.state}, now)
            elif (
                job_id not in closed
            ):  # prepared or parked again: round and start monitor see to it
                self._pending(found, tracked, now)

    def _alone(self, gated: GatedJob, now: float) -> None:
        """Tell of a job of ours whose gate an operator opened, or that started without us."""
        job, marker = gated.job, gated.marker
        runs = gated.phase is JobPhase.STARTED and bool(job.nodes)
        by_hand = marker is not None and marker.phase is JobPhase.OPENED
        if not runs and not by_hand:
            return
        last = self.ledger.last_event(job.id)
        if by_hand and marker is not None and (last is None or last.kind not in _TOLD):
            self.ledger.event(job.id, "opened_by_hand", {}, marker.at)
        if runs:
            tracked = Tracked(None, JobPhase.STARTED, tuple(job.nodes), None, job.restarts)
            tracked.raw_id = job.raw_id
            self.placed[job.id] = tracked
            if last is None or last.kind != "started":
                detail: dict[str, Any] = {"start_s": job.start_s, "gpus": _gpus_of(job)}
                if marker is None or marker.phase not in BOUND:
                    detail["without_us"] = True
                self.ledger.event(job.id, "started", detail, job.start_s or now)

    def _parked(self, job: SlurmJob, now: float) -> None:
        self._seen_alone.pop(job.id, None)
        if job.id in self._seen_parked:
            return
        self._seen_parked.add(job.id)
        if not self.ledger.has_event(job.id, "parked"):
            detail: dict[str, Any] = {"user": job.user, "reason": job.reason}
            if not lost_reservation(job):
                detail["reservation"] = job.reservation
            self.ledger.event(job.id, "parked", detail, now)

    def asked_for_none(self, job: SlurmJob) -> bool:
        """Whether a job came without a reservation of its user's, as far as is written."""
        first = self.ledger.first_event(job.id, "parked")
        return first is not None and first.detail.get("reservation", "") is None

    def _started(self, job: SlurmJob, tracked: Tracked, now: float) -> None:
        if tracked.phase is JobPhase.STARTED and job.restarts == tracked.restarts:
            return
        if not job.nodes:
            return  # it ended without having run
        if tracked.phase is JobPhase.STARTED and job.state == "COMPLETING":
            return  # on its way back to the queue
        detail: dict[str, Any] = {"start_s": job.start_s, "restarts": job.restarts}
        got = _gpus_of(job)
        if got:
            detail["gpus"] = got
        else:  # it has ended already: Slurm still knows its nodes and types
            detail |= {"nodes": list(job.nodes), "types": sorted(job.gpu_types)}
        detail["as_planned"] = self._as_planned(job, got, tracked)
        if not detail["as_planned"]:
            log.warning(
                "job %s runs on %s, not on %s %s as decided",
                job.id,
                got or ",".join(job.nodes),
                ",".join(tracked.nodes),
                list(tracked.slots or ()),
            )
        tracked.phase = JobPhase.STARTED
        tracked.restarts = job.restarts
        log.info("job %s started on %s", job.id, got or ",".join(job.nodes))
        self.ledger.outcome(tracked.decision, JobPhase.STARTED, job.start_s or now, detail)
        self.ledger.event(job.id, "started", detail, job.start_s or now)

    @staticmethod
    def _as_planned(job: SlurmJob, got: Mapping[str, list[int]], tracked: Tracked) -> bool:
        if set(job.nodes) != set(tracked.nodes):
            return False
        if tracked.slots is None:
            return True
        if not got:
            return job.gpu_types == {index_type(slot) for slot in tracked.slots}
        return set(got) == set(tracked.nodes) and all(
            slots == sorted(tracked.slots) for slots in got.values()
        )

    def _ended(self, job_id: str, tracked: Tracked, detail: Mapping[str, Any], now: float) -> None:
        log.info("job %s ended: %s", job_id, detail["state"])
        self.ledger.outcome(tracked.decision, JobPhase.ENDED, now, detail)
        self.ledger.event(job_id, "ended", detail, now)
        self.placed.pop(job_id, None)

    def _pending(self, job: SlurmJob, tracked: Tracked, now: float) -> None:
        if tracked.phase is JobPhase.STARTED or job.restarts > tracked.restarts:
            if tracked.phase is not JobPhase.REQUEUED:
                log.info("job %s was requeued", job.id)
                self.ledger.event(job.id, "requeued", {"restarts": job.restarts}, now)
            tracked.phase = JobPhase.REQUEUED
        elif tracked.phase in (JobPhase.PLANNED, JobPhase.PREPARED):
            # A selector that died after opening the gate could not write it down.
            tracked.phase = JobPhase.RELEASED
            self.ledger.outcome(tracked.decision, JobPhase.RELEASED, now, {"seen_later": True})
            self.ledger.event(job.id, "released", {"seen_later": True}, now)


def _gpus_of(job: SlurmJob) -> dict[str, list[int]]:
    """Node -> GPU indices that Slurm shows of a job that holds some."""
    return {share.node: list(share.gpus) for share in job.shares if share.gpus}
