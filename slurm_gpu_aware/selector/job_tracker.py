"""What became of the jobs that we placed: started, ended, requeued. Writes it to the ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.holding_pool import lost_reservation
from slurm_gpu_aware.gate.job_marker import HAND, mark_of
from slurm_gpu_aware.gate.licence_gate import is_parked
from slurm_gpu_aware.names import index_type
from slurm_gpu_aware.selector.ledger_writer import Books, Entry
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob

__all__ = ["Tracked", "Watch"]

log = logging.getLogger(__name__)

_ALONE = frozenset({"opened_by_hand", "started", "ended"})


@dataclass
class Tracked:
    """A job with an open decision."""

    decision: Entry | None
    """In the ledger; None: it is not there."""
    state: str
    nodes: tuple[str, ...]
    slots: tuple[int, ...] | None
    """None: Slurm picks the GPUs."""
    restarts: int
    opened: float | None = None
    """When this selector opened the gate, in seconds of a clock that is never set."""
    opened_at: float | None = None
    """The same, Unix seconds."""
    raw_id: int | None = None
    """Slurm's number of its record, once we have seen it placed."""
    victims: frozenset[str] = frozenset()
    """Jobs that have to go first; Slurm may give them time for that."""


@dataclass
class Watch:
    """Placed jobs by id, from the ledger and from what Slurm shows."""

    books: Books
    config: Config
    placed: dict[str, Tracked] = field(default_factory=dict)
    _seen_parked: set[str] = field(default_factory=set)
    _seen_alone: dict[str, str] = field(default_factory=dict)
    """State of the jobs without an open decision, when they were looked at last."""

    def load(self) -> None:
        """Take up the decisions that a previous selector left open."""
        for decision in self.books.open_decisions():
            slots = tuple(decision.slots[0]) if decision.exact and decision.slots else None
            tracked = Tracked(
                Entry(decision.id), decision.state, tuple(decision.nodes), slots, decision.restarts
            )
            tracked.victims = frozenset(decision.victims)
            self.placed[decision.job_id] = tracked

    def observe(self, jobs: Iterable[SlurmJob], now: float, unread: Set[int] = frozenset()) -> None:
        """Compare with what Slurm shows and write down what changed.

        ``unread``: records that are there but could not be read; their jobs are not gone.
        """
        known = {job.id: job for job in jobs}
        for job in known.values():
            if is_parked(job, self.config.gate):
                self._parked(job, now)
            elif job.id not in self.placed and self._seen_alone.get(job.id) != job.state:
                self._seen_alone[job.id] = job.state
                self._alone(job, now)
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
                if tracked.state != "started":
                    self._started(found, tracked, now)
                self._ended(job_id, tracked, {"state": found.state}, now)
            else:
                self._pending(found, tracked, now)

    def _alone(self, job: SlurmJob, now: float) -> None:
        """Tell of a job of ours whose gate an operator opened, or that started without us."""
        if parse(job.admin_comment) is None:
            return
        mark = mark_of(job.admin_comment)
        runs = job.state in HOLDING and bool(job.nodes)
        opened = mark if mark is not None and mark.state == HAND else None
        if not runs and opened is None:
            return
        last = self.books.last_event(job.id)
        left = last is not None and "left_to_slurm" in last.detail
        if opened is not None and not left and (last is None or last.kind not in _ALONE):
            self.books.event(job.id, "opened_by_hand", {}, opened.at)
        if runs:
            tracked = Tracked(None, "started", tuple(job.nodes), None, job.restarts)
            tracked.raw_id = job.raw_id
            self.placed[job.id] = tracked
            if last is None or last.kind != "started":
                detail: dict[str, Any] = {"start_s": job.start_s, "gpus": _gpus_of(job)}
                if mark is None or opened is not None:
                    detail["without_us"] = True
                self.books.event(job.id, "started", detail, job.start_s or now)

    def _parked(self, job: SlurmJob, now: float) -> None:
        self._seen_alone.pop(job.id, None)
        if job.id in self._seen_parked:
            return
        self._seen_parked.add(job.id)
        if not self.books.has_event(job.id, "parked"):
            detail: dict[str, Any] = {"user": job.user, "reason": job.reason}
            if not lost_reservation(job):
                detail["reservation"] = job.reservation
            self.books.event(job.id, "parked", detail, now)

    def asked_for_none(self, job: SlurmJob) -> bool:
        """Whether a job came without a reservation of its user's, as far as is written."""
        first = self.books.first_event(job.id, "parked")
        return first is not None and first.detail.get("reservation", "") is None

    def _started(self, job: SlurmJob, tracked: Tracked, now: float) -> None:
        if tracked.state == "started" and job.restarts == tracked.restarts:
            return
        if not job.nodes:
            return  # it ended without having run
        if tracked.state == "started" and job.state == "COMPLETING":
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
        tracked.state = "started"
        tracked.restarts = job.restarts
        log.info("job %s started on %s", job.id, got or ",".join(job.nodes))
        self.books.outcome(tracked.decision, "started", job.start_s or now, detail)
        self.books.event(job.id, "started", detail, job.start_s or now)

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
        self.books.outcome(tracked.decision, "ended", now, detail)
        self.books.event(job_id, "ended", detail, now)
        del self.placed[job_id]

    def _pending(self, job: SlurmJob, tracked: Tracked, now: float) -> None:
        if is_parked(job, self.config.gate):
            return  # prepared, or parked again: rounds and recovery see to it
        if tracked.state == "started" or job.restarts > tracked.restarts:
            if tracked.state != "requeued":
                log.info("job %s was requeued", job.id)
                self.books.event(job.id, "requeued", {"restarts": job.restarts}, now)
            tracked.state = "requeued"
        elif tracked.state in ("planned", "prepared"):
            # A selector that died after opening the gate could not write it down.
            tracked.state = "released"
            self.books.outcome(tracked.decision, "released", now, {"seen_later": True})
            self.books.event(job.id, "released", {"seen_later": True}, now)


def _gpus_of(job: SlurmJob) -> dict[str, list[int]]:
    """Node -> GPU indices that Slurm shows of a job that holds some."""
    return {share.node: list(share.gpus) for share in job.shares if share.gpus}
