"""Job tracker: follows placed jobs and writes their outcome to the ledger."""

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.bounds import index_type
from slurm_gpu_aware.gate.admin_comment import BOUND
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.licence_gate import lost_reservation
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.backoff import Refusals
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.ledger_writer import Entry, LedgerWriter
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob

log = logging.getLogger(__name__)

_AFTER_OPENING = frozenset({"opened_by_hand", "started", "ended"})  # not recorded again after these


@dataclass
class Tracked:
    """A job with an open decision."""

    decision: Entry | None  # Its entry in the ledger; None: no decision.
    phase: JobPhase
    nodes: tuple[str, ...]
    slots: tuple[int, ...] | None  # None: Slurm chooses the GPUs.
    restarts: int
    released_s: float | None = None
    """When this selector opened the gate, in seconds of the monotonic clock."""
    released_at: float | None = None  # The same time, Unix seconds.
    raw_id: int | None = None  # Slurm's number of the record; None: not seen since it was placed.
    victims: frozenset[str] = frozenset()
    """Jobs that Slurm preempts for it, possibly after a grace time."""
    record: str | None = None  # AdminComment with which it was parked; None: not known.


@dataclass
class JobTracker:
    """Placed jobs by id, from the ledger and from Slurm.

    The start monitor's thread may call only `withdraw`.
    """

    ledger: LedgerWriter
    refusals: Refusals = field(default_factory=Refusals)
    placed: dict[str, Tracked] = field(default_factory=dict)
    _seen_parked: set[str] = field(default_factory=set)
    _seen_unplaced: dict[str, str] = field(default_factory=dict)
    """Last state of the jobs without an open decision."""

    def load(self) -> None:
        """Load the open decisions of a previous selector."""
        for decision in self.ledger.open_decisions():
            self.placed[decision.job_id] = Tracked(
                Entry(decision.id),
                JobPhase(decision.state),
                tuple(decision.nodes),
                decision.gpus,
                decision.restarts,
                victims=frozenset(decision.victims),
                record=decision.record,
            )

    def victims(self, job_id: str) -> frozenset[str]:
        """Jobs that Slurm preempts for a placed job."""
        tracked = self.placed.get(job_id)
        return tracked.victims if tracked is not None else frozenset()

    def withdraw(self, job_id: str, detail: Mapping[str, Any], now: float) -> None:
        """Close the job's open decision, if any, because its binding is gone."""
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
        """Compare with all jobs of Slurm and record the changes.

        ``unread``: records that exist but could not be read; their jobs are not gone.
        """
        known = {job.id: job for job in jobs}
        phases: dict[str, JobPhase] = {}
        parked: set[str] = set()
        for ours in gated:
            state, phases[ours.id] = ours.job.state, ours.phase
            with contained("job tracker", ours.id):
                if ours.parked:
                    parked.add(ours.id)
                    self._parked(ours.job, now)
                elif ours.id not in self.placed and self._seen_unplaced.get(ours.id) != state:
                    self._seen_unplaced[ours.id] = state
                    self._unplaced(ours, now)
        self._seen_parked &= known.keys()
        self._seen_unplaced = {i: state for i, state in self._seen_unplaced.items() if i in known}
        for job_id, tracked in list(self.placed.items()):
            job = known.get(job_id)
            if job is not None:
                tracked.raw_id = job.raw_id
            if job is None and unread and (tracked.raw_id is None or tracked.raw_id in unread):
                continue
            with contained("job tracker", job_id):
                if job is None and job_id.partition("_")[0] in parked:
                    self.withdraw(job_id, {"why": "still part of its array's record"}, now)
                elif job is None:
                    gone = {"state": "unknown", "why": "gone from Slurm"}
                    self._ended(job_id, tracked, gone, now)
                elif job.state in HOLDING:
                    self._started(job, tracked, now)
                elif job.state != "PENDING":
                    if tracked.phase is not JobPhase.STARTED:
                        self._started(job, tracked, now)
                    self._ended(job_id, tracked, {"state": job.state}, now)
                elif phases.get(job_id) in (JobPhase.LEFT, JobPhase.OPENED):
                    self.withdraw(job_id, {"why": "its gate was opened for good"}, now)
                elif job_id not in parked:  # a parked one is handled by round and start monitor
                    self._pending(job, tracked, now)

    def _unplaced(self, gated: GatedJob, now: float) -> None:
        """Record a gated job that an operator released, or that started without us."""
        job, marker = gated.job, gated.marker
        runs = gated.phase is JobPhase.STARTED and bool(job.nodes)
        final = marker if marker is not None and marker.phase not in BOUND else None
        if not runs and final is None:
            return
        last = self.ledger.last_event(job.id)
        if final is not None and (last is None or last.kind not in _AFTER_OPENING):
            if final.phase is JobPhase.OPENED:
                self.ledger.event(job.id, "opened_by_hand", {}, final.at)
            elif last is None or "left_to_slurm" not in last.detail:  # it was interrupted
                why = {"left_to_slurm": "no reason was recorded"}
                self.ledger.event(job.id, "released", why, final.at)
        if runs:
            self.placed[job.id] = Tracked(
                None, JobPhase.STARTED, job.nodes, None, job.restarts, raw_id=job.raw_id
            )
            if last is None or last.kind != "started":
                detail: dict[str, Any] = {"start_s": job.start_s, "restarts": job.restarts}
                detail["gpus"] = _gpus_of(job)
                if marker is None or marker.phase not in BOUND:
                    detail["without_us"] = True
                self.ledger.event(job.id, "started", detail, job.start_s or now)

    def _parked(self, job: SlurmJob, now: float) -> None:
        self._seen_unplaced.pop(job.id, None)
        if job.id in self._seen_parked:
            return
        self._seen_parked.add(job.id)
        if self.ledger.first_event(job.id, "parked") is None:
            detail: dict[str, Any] = {"user": job.user, "reason": job.reason}
            if not lost_reservation(job):
                detail["reservation"] = job.reservation
            self.ledger.event(job.id, "parked", detail, now)

    def asked_for_none(self, job: SlurmJob) -> bool:
        """Whether the ledger says that a job was submitted without a reservation."""
        # If a task was only parked again, its submission is that of its array.
        for name in dict.fromkeys([job.id, str(job.array_id or job.id)]):
            first = self.ledger.first_event(name, "parked")
            if first is not None and "reservation" in first.detail:
                return first.detail["reservation"] is None
        return False

    def _started(self, job: SlurmJob, tracked: Tracked, now: float) -> None:
        known = tracked.phase is JobPhase.STARTED
        back = job.state == "COMPLETING"  # on its way to the queue
        if not job.nodes or (known and (back or job.restarts == tracked.restarts)):
            return  # it ended without a start, or its start is recorded
        detail: dict[str, Any] = {"start_s": job.start_s, "restarts": job.restarts}
        got = _gpus_of(job)
        if got:
            detail["gpus"] = got
        else:  # it has ended: Slurm still shows its nodes and types
            detail |= {"nodes": list(job.nodes), "types": sorted(job.gpu_types)}
        detail["as_planned"] = tracked.decision is None or self._as_planned(job, got, tracked)
        if not detail["as_planned"]:
            log.warning(
                "job %s runs on %s instead of %s %s",
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
        if not tracked.nodes:
            return True  # Slurm chooses the nodes, too
        same_nodes = set(job.nodes) == set(tracked.nodes)
        if not same_nodes or tracked.slots is None:
            return same_nodes
        if not got:
            return job.gpu_types == {index_type(slot) for slot in tracked.slots}
        return got == dict.fromkeys(tracked.nodes, sorted(tracked.slots))

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
            # A selector died between the opening of the gate and its record.
            tracked.phase = JobPhase.RELEASED
            self.ledger.outcome(tracked.decision, JobPhase.RELEASED, now, {"seen_later": True})
            self.ledger.event(job.id, "released", {"seen_later": True}, now)


def _gpus_of(job: SlurmJob) -> dict[str, list[int]]:
    """Node -> GPU indices that the job holds, or of which it has shards."""
    return {share.node: share.slots for share in job.shares if share.slots}
