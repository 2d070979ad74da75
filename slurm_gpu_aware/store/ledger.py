"""The ledger: every decision of the selector and every event of a job.

Each method is one short transaction; the daemon calls them from its loop. Readers make a
:class:`Ledger` over a store that was opened read-only.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.model.job_phase import OPEN_DECISION, JobPhase
from slurm_gpu_aware.store.database import Store

__all__ = ["EVENT_KINDS", "RECORD", "STATES", "Decision", "Event", "Ledger", "RoundRecord"]

RECORD = "record"
"""Key in a decision's outcome of the AdminComment that the job was parked with."""

STATES = (*OPEN_DECISION, JobPhase.WAITING, JobPhase.ENDED)
"""Phases of a decision's job; ``waiting``: the decision came to nothing, its outcome says why."""
EVENT_KINDS = (
    "parked",
    "planned",
    "prepared",
    "released",
    "started",
    "ended",
    "reparked",
    "requeued",
    "refused",
    "clock_set",
    "clock_failed",
    "opened_by_hand",
    "gate_created",
    "gate_lost",
    "error",
)


@dataclass(frozen=True)
class Decision:
    """One placement of one job. Times are Unix seconds, scores and slowdown are ratios."""

    job_id: str
    user: str
    submitted_at: float
    decided_at: float
    asked: Mapping[str, Any]
    """What was asked for, JSON-able."""
    policy: str
    nodes: Sequence[str]
    slots: Sequence[Sequence[int]]
    """Slurm's GPU indices per node, parallel to ``nodes``."""
    score: float
    level: str
    slowdown: float
    clock_mhz: int | None = None
    """None: default clock."""
    exact: bool = True
    """False: Slurm picks the GPUs of these nodes."""
    victims: Sequence[str] = ()
    why: Mapping[str, Any] = field(default_factory=dict)
    """The policy's own account."""
    took_ms: float = 0.0
    """Time spent deciding."""
    state: str = "planned"
    """One of ``STATES``."""
    restarts: int = 0
    """Slurm's restart count of the job when it was decided."""
    outcome_at: float | None = None
    """When ``state`` was last set; None: never since the decision."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    id: int | None = None
    """Number in the ledger; None: not stored yet."""

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """GPU indices on each of its nodes; None: Slurm picks them."""
        return tuple(sorted(self.slots[0])) if self.exact and self.slots else None

    @property
    def record(self) -> str | None:
        """AdminComment that the job was parked with; None: not known."""
        found = self.outcome.get(RECORD)
        return found if isinstance(found, str) else None


@dataclass(frozen=True)
class Event:
    """Something that happened to a job (``job_id``) or to the gate (``job_id`` empty)."""

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
    queued: int
    """Parked jobs that the round saw."""
    placed: int
    waiting: int
    trigger: str = "timer"
    """What started it: submit, end, timer, ..."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    id: int | None = None


class Ledger:
    """Reads and writes the ledger's tables of an open store. Methods raise StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_decision(self, decision: Decision) -> int:
        """Store a decision and return its number. Raises ValueError for a state not in STATES."""
        _check(decision.state, STATES, "state")
        if len(decision.nodes) != len(decision.slots):
            raise ValueError(f"job {decision.job_id}: nodes and slots differ in length")
        with self._store.write():
            cursor = self._store.execute(
                "INSERT INTO decisions (job_id, user, submitted_at_unix, decided_at_unix, policy,"
                " score, level, slowdown, clock_mhz, exact, took_ms, state, restarts, asked,"
                " victims, why, outcome_at_unix, outcome)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    decision.job_id,
                    decision.user,
                    float(decision.submitted_at),
                    float(decision.decided_at),
                    decision.policy,
                    float(decision.score),
                    decision.level,
                    float(decision.slowdown),
                    None if decision.clock_mhz is None else int(decision.clock_mhz),
                    int(decision.exact),
                    float(decision.took_ms),
                    decision.state,
                    int(decision.restarts),
                    _dump(decision.asked),
                    _dump(list(decision.victims)),
                    _dump(decision.why),
                    decision.outcome_at,
                    _dump(decision.outcome),
                ),
            )
            number = cursor.lastrowid
            if number is None:  # pragma: no cover - SQLite always numbers an inserted row
                raise RuntimeError("SQLite gave no row number")
            self._store.executemany(
                "INSERT INTO decision_nodes (decision_id, position, node, slots)"
                " VALUES (?, ?, ?, ?)",
                [
                    (number, i, node, _dump([int(s) for s in slots]))
                    for i, (node, slots) in enumerate(
                        zip(decision.nodes, decision.slots, strict=True)
                    )
                ],
            )
        return number

    def add_event(self, job_id: str, kind: str, detail: Mapping[str, Any], at: float) -> None:
        """Store an event. Raises ValueError for a kind not in EVENT_KINDS."""
        _check(kind, EVENT_KINDS, "event kind")
        self._store.execute(
            "INSERT INTO events (job_id, kind, at_unix, detail) VALUES (?, ?, ?, ?)",
            (job_id, kind, float(at), _dump(detail)),
        )

    def set_outcome(
        self,
        decision_id: int,
        state: str,
        at: float,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the state of a decision; ``detail`` is merged into its outcome.

        Setting the same state again changes nothing but the time, so a restarted selector may
        repeat it. Raises ValueError for an unknown state or decision.
        """
        _check(state, STATES, "state")
        with self._store.write():
            rows = self._store.query("SELECT outcome FROM decisions WHERE id = ?", (decision_id,))
            if not rows:
                raise ValueError(f"no decision {decision_id} in the ledger")
            merged = {**json.loads(rows[0]["outcome"]), **(detail or {})}
            self._store.execute(
                "UPDATE decisions SET state = ?, outcome_at_unix = ?, outcome = ? WHERE id = ?",
                (state, float(at), _dump(merged), decision_id),
            )

    def add_round(self, record: RoundRecord) -> None:
        """Store a round."""
        self._store.execute(
            "INSERT INTO rounds (started_at_unix, took_ms, trigger, queued, placed, waiting,"
            " detail) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                float(record.started_at),
                float(record.took_ms),
                record.trigger,
                int(record.queued),
                int(record.placed),
                int(record.waiting),
                _dump(record.detail),
            ),
        )

    def decisions(self, job_id: str) -> list[Decision]:
        """All decisions about a job, oldest first."""
        return self._decisions("WHERE job_id = ? ORDER BY id", (job_id,))

    def decision(self, decision_id: int) -> Decision | None:
        """One decision by its number."""
        found = self._decisions("WHERE id = ?", (decision_id,))
        return found[0] if found else None

    def open_decisions(self) -> list[Decision]:
        """Decisions whose job has neither ended nor gone back to the queue, oldest first."""
        marks = ", ".join("?" for _ in OPEN_DECISION)
        return self._decisions(f"WHERE state IN ({marks}) ORDER BY id", OPEN_DECISION)

    def last_decisions(self, limit: int = 20) -> list[Decision]:
        """The newest decisions, newest first."""
        return self._decisions("ORDER BY id DESC LIMIT ?", (limit,))

    def decisions_on(self, node: str, limit: int = 100) -> list[Decision]:
        """The newest decisions that used a node, newest first."""
        return self._decisions(
            "WHERE id IN (SELECT decision_id FROM decision_nodes WHERE node = ?)"
            " ORDER BY id DESC LIMIT ?",
            (node, limit),
        )

    def events(self, job_id: str, *, last: int | None = None) -> list[Event]:
        """Events of a job, all or the ``last`` ones, oldest first; ``""`` gives those of the gate.

        Those of one second come in the order in which they were told: Slurm's own times are whole
        seconds.
        """
        rows = self._store.query(
            "SELECT * FROM events WHERE job_id = ?"
            " ORDER BY CAST(at_unix AS INTEGER) DESC, id DESC LIMIT ?",
            (job_id, -1 if last is None else last),
        )
        return [_event(row) for row in reversed(rows)]

    def gpus_given(self) -> dict[str, dict[str, list[int]]]:
        """Job id -> node -> GPU indices, of every job whose start was seen; the last one counts."""
        rows = self._store.query(
            "SELECT job_id, detail FROM events WHERE kind = 'started' ORDER BY at_unix, id"
        )
        found = {str(row["job_id"]): json.loads(row["detail"]).get("gpus") for row in rows}
        return {job_id: gpus for job_id, gpus in found.items() if gpus}

    def last_events(self, limit: int = 20, kinds: Sequence[str] = ()) -> list[Event]:
        """The newest events of all jobs, newest first; only of ``kinds`` if any are named."""
        chosen = tuple(kinds) or EVENT_KINDS
        marks = ", ".join("?" for _ in chosen)
        return [
            _event(row)
            for row in self._store.query(
                f"SELECT * FROM events WHERE kind IN ({marks}) ORDER BY id DESC LIMIT ?",  # noqa: S608
                (*chosen, limit),
            )
        ]

    def last_rounds(self, limit: int = 20) -> list[RoundRecord]:
        """The newest rounds, newest first."""
        return [
            RoundRecord(
                started_at=row["started_at_unix"],
                took_ms=row["took_ms"],
                queued=row["queued"],
                placed=row["placed"],
                waiting=row["waiting"],
                trigger=row["trigger"],
                detail=json.loads(row["detail"]),
                id=row["id"],
            )
            for row in self._store.query("SELECT * FROM rounds ORDER BY id DESC LIMIT ?", (limit,))
        ]

    def forget_waiting(self, before_unix: float) -> None:
        """Drop the details of rounds before ``before_unix``, all but their numbers.

        They list all jobs that wait, many times a minute, and only the last ones are ever read.
        """
        self._store.execute(
            "UPDATE rounds SET detail = '{}' WHERE started_at_unix < ? AND detail <> '{}'",
            (before_unix,),
        )

    def prune(self, before_unix: float) -> int:
        """Delete what is older than ``before_unix`` and return how many rows that was.

        A decision stays while its job may still run (states planned to started), and so do the
        events of such a job.
        """
        marks = ", ".join("?" for _ in OPEN_DECISION)
        kept = f"SELECT job_id FROM decisions WHERE state IN ({marks})"  # noqa: S608
        with self._store.write():
            deleted = [
                self._store.execute(sql, params).rowcount
                for sql, params in (
                    (
                        "DELETE FROM decisions WHERE decided_at_unix < ?"  # noqa: S608
                        f" AND state NOT IN ({marks})",
                        (before_unix, *OPEN_DECISION),
                    ),
                    (
                        f"DELETE FROM events WHERE at_unix < ? AND job_id NOT IN ({kept})",  # noqa: S608
                        (before_unix, *OPEN_DECISION),
                    ),
                    ("DELETE FROM rounds WHERE started_at_unix < ?", (before_unix,)),
                )
            ]
        return sum(deleted)

    def _decisions(self, tail: str, params: Sequence[Any]) -> list[Decision]:
        rows = self._store.query(f"SELECT * FROM decisions {tail}", params)  # noqa: S608
        places: dict[int, list[sqlite3.Row]] = {}
        for chunk in range(0, len(rows), 500):
            ids = [row["id"] for row in rows[chunk : chunk + 500]]
            marks = ", ".join("?" for _ in ids)
            for place in self._store.query(
                f"SELECT * FROM decision_nodes WHERE decision_id IN ({marks})"  # noqa: S608
                " ORDER BY decision_id, position",
                ids,
            ):
                places.setdefault(place["decision_id"], []).append(place)
        return [_decision(row, places.get(row["id"], [])) for row in rows]


def _decision(row: sqlite3.Row, places: Sequence[sqlite3.Row]) -> Decision:
    return Decision(
        job_id=row["job_id"],
        user=row["user"],
        submitted_at=row["submitted_at_unix"],
        decided_at=row["decided_at_unix"],
        asked=json.loads(row["asked"]),
        policy=row["policy"],
        nodes=[place["node"] for place in places],
        slots=[json.loads(place["slots"]) for place in places],
        score=row["score"],
        level=row["level"],
        slowdown=row["slowdown"],
        clock_mhz=row["clock_mhz"],
        exact=bool(row["exact"]),
        victims=json.loads(row["victims"]),
        why=json.loads(row["why"]),
        took_ms=row["took_ms"],
        state=row["state"],
        restarts=row["restarts"],
        outcome_at=row["outcome_at_unix"],
        outcome=json.loads(row["outcome"]),
        id=row["id"],
    )


def _event(row: sqlite3.Row) -> Event:
    return Event(row["job_id"], row["kind"], json.loads(row["detail"]), row["at_unix"], row["id"])


def _dump(value: Any) -> str:
    """Strict JSON: infinite and undefined numbers (no time limit, 0/0) become null."""
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays, sets, mappings and paths that reach a policy's account."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return _finite(_plain(value))


def _check(value: str, known: Sequence[str], what: str) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}; known: {', '.join(known)}")
