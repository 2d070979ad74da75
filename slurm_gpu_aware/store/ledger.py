"""Ledger: decisions and recorded rounds of the selector, events of jobs.

Each write is a transaction. Recorded rounds (snapshots) are kept compressed, for replay.
"""

import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.features import found
from slurm_gpu_aware.model.job_phase import OPEN_DECISION, JobPhase
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.tables import RecordTable, dump
from slurm_gpu_aware.time_text import stamp

_LATE_S = 120.0  # a running selector is never later than this with what it wanted to do

KEEP = 200  # Number of recorded rounds to keep; older ones are deleted.
KEEP_BYTES = 16 << 20  # Limit of the size of all recorded rounds; the newest is always kept.
RECORD = "record"  # Key in a decision's outcome: the AdminComment with which the job was parked.

STATES = (*OPEN_DECISION, JobPhase.WAITING, JobPhase.ENDED)
"""Phases of a decision's job; ``waiting``: the job went back to the queue, see the outcome."""
EVENT_KINDS = tuple(
    dict.fromkeys(
        (
            *("parked", "planned", "prepared", "released", "started", "ended", "requeued"),
            *("refused", "opened_by_hand", "gate_created", "gate_lost", "changed", "error"),
            "clock_failed",  # The placer's, too, whatever features there are.
            *(kind for events in found("declared", "EVENTS") for kind in events),
        )
    )
)
_OPEN = f"state IN ({', '.join(map(repr, map(str, OPEN_DECISION)))})"
"""Decisions whose job may still run."""


@dataclass(frozen=True)
class Decision:
    """One placement of a job. Times are Unix seconds, scores and slowdown are ratios."""

    job_id: str
    user: str
    submitted_at: float
    decided_at: float
    asked: Mapping[str, Any]  # The request, JSON-able.
    policy: str
    nodes: Sequence[str]
    slots: Sequence[Sequence[int]]  # Slurm's GPU indices per node, parallel to ``nodes``.
    score: float
    level: str
    slowdown: float
    clock_mhz: int | None = None  # None: the default clock.
    exact: bool = True  # False: Slurm chooses the GPUs of these nodes.
    victims: Sequence[str] = ()
    why: Mapping[str, Any] = field(default_factory=dict)  # The policy's account.
    took_ms: float = 0.0
    state: str = "planned"  # One of ``STATES``.
    restarts: int = 0  # Slurm's restart count of the job at the decision.
    outcome_at: float | None = None  # When ``state`` was last set; None: not since the decision.
    outcome: Mapping[str, Any] = field(default_factory=dict)
    id: int | None = None  # Number in the ledger; None: not stored yet.

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """GPU indices on each node; None: Slurm chooses them."""
        return tuple(sorted(self.slots[0])) if self.exact and self.slots else None

    @property
    def record(self) -> str | None:
        """AdminComment with which the job was parked; None: not known."""
        record = self.outcome.get(RECORD)
        return record if isinstance(record, str) else None


@dataclass(frozen=True)
class Event:
    """Event of a job (``job_id``) or of the gate (``job_id`` empty)."""

    job_id: str
    kind: str
    detail: Mapping[str, Any]
    at: float
    id: int | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One round of the selector."""

    started_at: float
    took_ms: float
    queued: int  # Parked jobs that the round saw.
    placed: int
    waiting: int
    trigger: str = "timer"  # Cause of the round: submit, end, timer, ...
    detail: Mapping[str, Any] = field(default_factory=dict)
    limit_w: float | None = None  # Power limit of all GPUs; None: there is none.
    planned_w: float | None = None  # Power of all GPUs after the round, as planned.
    measured_w: float | None = None
    """Power of all GPUs as the nodes last reported it; None: not all report it."""
    id: int | None = None


class OpenJob(NamedTuple):
    """A job whose decision is open, in short."""

    job_id: str
    state: str
    slowdown: float
    policy: str
    app_class: str  # Empty: none.


_DECISIONS = RecordTable("decisions", Decision)
_EVENTS = RecordTable("events", Event)
_ROUNDS = RecordTable("rounds", RoundRecord)


class Ledger:
    """Reads and writes the ledger's tables of an open store. Methods raise StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_decision(self, decision: Decision) -> int | None:
        """Store a decision and return its number. Raises ValueError for a state not in STATES."""
        _check(decision.state, STATES, "state")
        return _DECISIONS.add(self._store, decision)

    def add_event(self, job_id: str, kind: str, detail: Mapping[str, Any], at: float) -> None:
        """Store an event. Raises ValueError for a kind not in EVENT_KINDS."""
        _check(kind, EVENT_KINDS, "event kind")
        _EVENTS.add(self._store, Event(job_id, kind, detail, float(at)))

    def set_outcome(
        self, decision_id: int, state: str, at: float, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Set the state of a decision; ``detail`` is merged into its outcome.

        Setting the same state again only changes the time, so a restarted selector may repeat it.
        Raises ValueError for an unknown state or decision.
        """
        _check(state, STATES, "state")
        with self._store.write():
            rows = self._store.query("SELECT outcome FROM decisions WHERE id = ?", (decision_id,))
            if not rows:
                raise ValueError(f"no decision {decision_id} in the ledger")
            merged = {**json.loads(rows[0]["outcome"]), **(detail or {})}
            self._store.execute(
                "UPDATE decisions SET state = ?, outcome_at_unix = ?, outcome = ? WHERE id = ?",
                (state, float(at), dump(merged), decision_id),
            )

    def add_round(self, record: RoundRecord) -> None:
        """Store a round. Only the newest one keeps its details: they list all waiting jobs."""
        with self._store.write():
            self._store.execute(
                "UPDATE rounds SET detail = '{}' WHERE id = (SELECT max(id) FROM rounds)"
            )
            _ROUNDS.add(self._store, record)

    def decisions(self, job_id: str) -> list[Decision]:
        """All decisions about a job, oldest first."""
        return _DECISIONS.read(self._store, "WHERE job_id = ? ORDER BY id", (job_id,))

    def open_decisions(self) -> list[Decision]:
        """Decisions whose job has neither ended nor gone back to the queue, oldest first."""
        return _DECISIONS.read(self._store, f"WHERE {_OPEN} ORDER BY id")

    def open_jobs(self) -> list[OpenJob]:
        """The same in short, without what is slow to read."""
        rows = self._store.query(
            "SELECT job_id, state, slowdown, policy, ifnull(json_extract(asked, '$.class'), '')"  # noqa: S608
            f" FROM decisions WHERE {_OPEN} ORDER BY id"
        )
        return [OpenJob(*row) for row in rows]

    def slowdowns(self, since_unix: float, limit: int) -> list[tuple[str, float, float]]:
        """(job id, time of the decision, slowdown), of the newest decisions, oldest first."""
        rows = self._store.query(
            "SELECT job_id, decided_at_unix, slowdown FROM decisions WHERE decided_at_unix >= ?"
            " ORDER BY id DESC LIMIT ?",
            (since_unix, limit),
        )
        return [(str(job_id), float(at), float(slowdown)) for job_id, at, slowdown in rows[::-1]]

    def ended_decisions(self, since_unix: float, limit: int) -> list[Decision]:
        """The newest decisions whose jobs ended since then, oldest first."""
        tail = "WHERE state = ? AND outcome_at_unix >= ? ORDER BY id DESC LIMIT ?"
        return _DECISIONS.read(self._store, tail, (JobPhase.ENDED, since_unix, limit))[::-1]

    def events(self, job_id: str, *, last: int = -1) -> list[Event]:
        """Events of a job (``""``: of the gate), all or the ``last`` ones, oldest first.

        Events of one second keep the order in which they were stored, because Slurm's times are
        whole seconds.
        """
        tail = "WHERE job_id = ? ORDER BY CAST(at_unix AS INTEGER) DESC, id DESC LIMIT ?"
        return _EVENTS.read(self._store, tail, (job_id, last))[::-1]

    @property
    def why_open(self) -> str:
        """Why the selector has opened the gate, the cure, and when it tries again.

        Empty: it has not opened it, or has not tried again when it wanted to, as it does not run.
        """
        last = next(iter(self.events("", last=1)), None)
        if last is None or last.kind != "gate_lost":
            return ""
        again_at = float(last.detail["again_at"])
        if time.time() > again_at + _LATE_S:
            return ""
        again = f"the selector tries again at {stamp(again_at)[11:]}"
        return f"{last.detail['why']}; {last.detail['cure']}; {again}"

    def events_since(self, kinds: Sequence[str], at: float) -> list[Event]:
        """Events of these kinds from a Unix time on, oldest first."""
        marks = ", ".join("?" for _ in kinds)
        tail = f"WHERE at_unix >= ? AND kind IN ({marks}) ORDER BY at_unix, id"
        return _EVENTS.read(self._store, tail, (at, *kinds))

    def gpus_given(self) -> dict[str, dict[str, list[int]]]:
        """Job id -> node -> GPU indices, of the last recorded start of each job."""
        rows = self._store.query(
            "SELECT job_id, detail FROM events WHERE kind = 'started' ORDER BY at_unix, id"
        )
        gpus_of = {str(row["job_id"]): json.loads(row["detail"]).get("gpus") for row in rows}
        return {job_id: gpus for job_id, gpus in gpus_of.items() if gpus}

    def power(self, since_unix: float) -> list[tuple[float, float, float, float | None]]:
        """(time, limit, planned and measured power) of the rounds under a limit, oldest first."""
        rows = self._store.query(
            "SELECT started_at_unix, limit_w, planned_w, measured_w FROM rounds"
            " WHERE limit_w IS NOT NULL AND planned_w IS NOT NULL AND started_at_unix >= ?"
            " ORDER BY id",
            (since_unix,),
        )
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def last_rounds(self, limit: int = 20) -> list[RoundRecord]:
        """The newest rounds, newest first."""
        return _ROUNDS.read(self._store, "ORDER BY id DESC LIMIT ?", (limit,))

    def add_snapshot(self, at: float, content: Mapping[str, Any]) -> None:
        """Store the record (``planning.record.record_round``) of a round at Unix time ``at``.

        Raises TypeError if it has values other than plain ones.
        """
        text = json.dumps(content, separators=(",", ":"))
        with self._store.write():
            self._store.execute(
                "INSERT INTO snapshots (at_unix, content) VALUES (?, ?)",
                (float(at), zlib.compress(text.encode("utf-8"), 6)),
            )
            self._store.execute(
                "DELETE FROM snapshots WHERE id <= (SELECT max(id) FROM snapshots) - ?"
                " OR id IN (SELECT id FROM ("
                "SELECT id, sum(length(content)) OVER (ORDER BY id DESC) AS upto FROM snapshots)"
                " WHERE upto > ? AND id < (SELECT max(id) FROM snapshots))",
                (KEEP, KEEP_BYTES),
            )

    def snapshots(self) -> list[dict[str, Any]]:
        """The recorded rounds, oldest first. Raises StoreError if one is damaged."""
        rounds = []
        for number, content in self._store.query("SELECT id, content FROM snapshots ORDER BY id"):
            try:
                rounds.append(json.loads(zlib.decompress(content)))
            except (zlib.error, ValueError) as exc:
                raise StoreError(f"snapshot {number} is damaged") from exc
        return rounds

    def prune(self, before_unix: float) -> None:
        """Delete rows older than ``before_unix``.

        A decision stays while its job may still run (states planned to started), with the events of
        the job.
        """
        queries = (
            f"DELETE FROM decisions WHERE decided_at_unix < ? AND NOT {_OPEN}",  # noqa: S608
            "DELETE FROM events WHERE at_unix < ?"  # noqa: S608
            f" AND job_id NOT IN (SELECT job_id FROM decisions WHERE {_OPEN})",
            "DELETE FROM rounds WHERE started_at_unix < ?",
        )
        with self._store.write():
            for query in queries:
                self._store.execute(query, (before_unix,))


def _check(value: str, known: Sequence[str], what: str) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}; known: {', '.join(known)}")
