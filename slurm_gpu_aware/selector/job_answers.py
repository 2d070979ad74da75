"""Answers about jobs from Slurm and from the ledger (the store or its public copy)."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features import found
from slurm_gpu_aware.gate.gated_job import queue_order
from slurm_gpu_aware.gate.licence_gate import GateState, Silence, gate_state, selector_silence
from slurm_gpu_aware.gate.typed_requests import can_start, gpu_types, type_sentence
from slurm_gpu_aware.model.job_phase import OPEN_DECISION, JobPhase
from slurm_gpu_aware.selector.live_jobs import (
    LiveJob,
    asks_for_gpus,
    asks_for_shards,
    find_job,
    live_jobs,
    why_by_form,
)
from slurm_gpu_aware.selector.waiting_jobs import WaitingJobs
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.slurm.records import ENDED, SlurmJob, SlurmNode, components_of
from slurm_gpu_aware.store.database import Store, open_for_reading
from slurm_gpu_aware.store.ledger import Decision, Event, Ledger, RoundRecord
from slurm_gpu_aware.time_text import duration

_MOST_LEFT = 200  # jobs whose events are read for a list
_LAG_S = 5.0  # from a job's start to the round that records it


@dataclass(frozen=True)
class Reader:
    """An open ledger, read-only."""

    store: Store
    ledger: Ledger
    copy_age_s: float | None  # Age of the public copy; None: the live store is open.

    def note(self) -> str | None:
        """A sentence for readers of the copy; None for the live store."""
        if self.copy_age_s is None:
            return None
        return f"From the selector's public copy, {duration(self.copy_age_s)} old."


@contextmanager
def open_reader(config: Config) -> Iterator[Reader]:
    """Open the ledger for reading. Raises StoreError that names the next step."""
    with open_for_reading(config.store) as store:
        copy_age_s = None
        if store.path != config.store.path:
            copy_age_s = 0.0
            with suppress(OSError):
                copy_age_s = max(0.0, time.time() - store.path.stat().st_mtime)
        yield Reader(store, Ledger(store), copy_age_s)


def waiting_of(record: RoundRecord | None) -> WaitingJobs:
    """Why jobs wait, as the newest round recorded it."""
    return WaitingJobs(record.detail.get("waiting") if record is not None else ())


def event_json(event: Event) -> dict[str, Any]:
    """An event as JSON; times in Unix seconds."""
    return {"at": event.at, "kind": event.kind, "detail": dict(event.detail)}


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision as JSON; ``slots`` is None where Slurm chooses the GPUs of the nodes."""
    plain = asdict(decision) | {"gpus_per_node": [len(slots) for slots in decision.slots]}
    return plain if decision.exact else plain | {"slots": None}


def left_of(jobs: Sequence[LiveJob], reader: Reader) -> list[tuple[LiveJob, str]]:
    """GPU jobs that wait for Slurm alone, by priority, and why the selector does not place them.

    The first component of a heterogeneous job stands for all.
    """
    others = components_of(live.job for live in jobs)

    def asks(job: SlurmJob) -> bool:
        every = (job, *others.get(job.raw_id, ()))
        return any(asks_for_gpus(one) or asks_for_shards(one) for one in every)

    alone = [
        live
        for live in jobs
        if live.job.state == "PENDING"
        and live.job.follows is None
        and not live.parked
        and live.placed_at is None
        and (live.by_hand or asks(live.job))
    ]
    alone.sort(key=lambda live: queue_order(live.job))
    found = []
    for number, live in enumerate(alone):
        why = live.left
        if why is None and live.by_hand and number < _MOST_LEFT:
            why = left_reason([event_json(e) for e in reader.ledger.events(live.job.id)])
        if why is None:
            why = "an operator released it" if live.by_hand else why_by_form(live.job)
        found.append((live, why or "not a form of request that the selector places"))
    return found


def left_reason(events: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the selector left a job to Slurm; None: it did not, or no reason is known."""
    reasons = [e["detail"]["left_to_slurm"] for e in events if "left_to_slurm" in e["detail"]]
    return reasons[-1] if reasons else None


def still_open(
    decisions: Iterable[Decision], jobs: Sequence[LiveJob] | None, *, away: bool
) -> list[Decision]:
    """Open decisions of the ledger without those of jobs that have ended in Slurm.

    ``away``: the selector records nothing, so a job that Slurm does not show has ended, and a
    running one has started. ``jobs`` None: Slurm does not answer.
    """
    if jobs is None:
        return list(decisions)
    states = {live.job.id: live.job.state for live in jobs}
    still = []
    for decision in decisions:
        state = states.get(decision.job_id)
        if (state is None and away) or state in ENDED:
            continue
        runs = away and state == "RUNNING"
        still.append(replace(decision, state="started") if runs else decision)
    return still


class SlurmAnswer(NamedTuple):
    """What Slurm says now."""

    jobs: Mapping[str, LiveJob] | None  # By id; None: it does not answer.
    silence: Silence | None
    gate: GateState | None
    error: str | None  # Why it did not answer, or not completely.


class Answers:
    """Answers about several jobs, for which the newest round and Slurm are read once."""

    def __init__(self, reader: Reader, config: Config) -> None:
        self.reader = reader
        self.config = config

    @cached_property
    def round(self) -> RoundRecord | None:
        """The newest round."""
        return next(iter(self.reader.ledger.last_rounds(1)), None)

    @cached_property
    def waiting(self) -> WaitingJobs:
        """Why jobs wait, as that round recorded it."""
        return waiting_of(self.round)

    @cached_property
    def slurm(self) -> SlurmAnswer:
        """What Slurm says."""
        jobs = silence = gate = None
        try:
            jobs = {live.job.id: live for live in live_jobs(self.config)}
            gate = gate_state(self.config, self.reader.ledger.why_open)
            silence = selector_silence(gate, self.config)
        except SourceError as exc:
            return SlurmAnswer(jobs, silence, gate, str(exc))
        return SlurmAnswer(jobs, silence, gate, None)

    @cached_property
    def nodes(self) -> Sequence[SlurmNode] | None:
        """Slurm's nodes; None: it does not answer."""
        if self.slurm.jobs is None:
            return None  # nor would it now
        with suppress(SourceError):
            return open_client(self.config.selector.command_timeout_s).nodes()
        return None

    def explain(self, job_id: str) -> dict[str, Any]:
        """The answer about a job, as JSON values.

        ``away``: why the ledger lacks the latest events; ``no_slurm``: why Slurm was not asked;
        ``component``: it was asked about a later component of this heterogeneous job, which waits.
        """
        answer = _look_up(self, job_id)
        if answer["state"] in ("unknown", JobPhase.WAITING, *OPEN_DECISION):
            live = find_job((self.slurm.jobs or {}).values(), job_id)
            if live is not None and live.job.follows is not None:
                return {**self.explain(str(live.job.follows)), "component": job_id}
            answer = _ask_slurm(answer, self)
        return answer


def _look_up(known: Answers, job_id: str) -> dict[str, Any]:
    """The answer of the ledger alone."""
    reader, newest = known.reader, known.round
    decisions = reader.ledger.decisions(job_id)
    events = reader.ledger.events(job_id)
    waiting = known.waiting.of(job_id)
    placed = decisions[-1] if decisions and decisions[-1].state != JobPhase.WAITING else None
    if newest is None or (placed is not None and placed.decided_at >= newest.started_at):
        waiting = None  # placed since
    rows = reader.store.query(
        "SELECT DISTINCT job_id FROM decisions WHERE job_id GLOB ? ORDER BY id", (f"{job_id}_*",)
    )
    tasks = [str(row["job_id"]) for row in rows] if not decisions else []
    state = _state(decisions, events, waiting)
    own = [one for some in found("accounts", "OF_EVENTS") for one in some.items()]
    return {
        "job_id": job_id,
        "state": "array" if tasks and not waiting else state,
        "waiting": waiting,
        "waiting_as_of": newest.started_at if newest is not None and waiting else None,
        "decisions": [decision_json(d) for d in decisions],
        "events": [event_json(e) for e in events],
        **{name: of(events) for name, of in own},
        "tasks": tasks,
        "slurm": None,
        "selector_away": None,
    }


def _state(
    decisions: Sequence[Decision], events: Sequence[Event], waiting: Mapping[str, Any] | None
) -> str:
    """The phase by the ledger, or ``unknown``."""
    if waiting:
        return JobPhase.WAITING
    if decisions:
        return decisions[-1].state
    kinds = {e.kind for e in events}
    if kinds & {"ended", "started"}:
        return "ended" if "ended" in kinds else "started"
    if "opened_by_hand" in kinds:
        return JobPhase.OPENED
    return JobPhase.WAITING if kinds & {"parked", "requeued"} else "unknown"


def _ask_slurm(answer: dict[str, Any], known: Answers) -> dict[str, Any]:
    """The answer with Slurm's state of a job that waits, runs, or is not in the ledger."""
    jobs, silence, _, error = known.slurm
    if jobs is None or error is not None:
        return {**answer, "no_slurm": error}
    reader, live = known.reader, jobs.get(answer["job_id"])
    if live is None:
        live = find_job(jobs.values(), answer["job_id"])
    if live is not None and live.job.id != (asked := answer["job_id"]):
        record = _look_up(known, live.job.id)
        if asked == str(live.job.raw_id):  # Slurm's number of an array task
            answer = record if record["state"] != "unknown" else answer
        elif not answer["events"]:  # a task whose array is one record yet
            answer = {**answer, "events": record["events"]}
    if silence is not None:
        answer["selector_away"] = asdict(silence)
        answer["away"] = silence.sentences()
    if live is None:
        if silence is not None and answer["state"] != "unknown":
            answer["slurm"] = {"state": None, "reason": None, "parked": False, "ended": True}
        return answer
    job = live.job
    left, gone = live.left, False
    if left is not None and gpu_types(job) and known.nodes is not None:
        left, gone = type_sentence(job, known.nodes), not can_start(job, known.nodes)
    shown = {"state": job.state, "reason": live.reason, "parked": live.parked, "left": left}
    shown["type_is_gone"] = gone
    answer["slurm"] = {**shown, "ended": job.state in ENDED}
    if answer["state"] in OPEN_DECISION:
        # The selector died before it opened the gate, or the copy is older than a requeue.
        if live.parked and (silence is not None or answer["state"] in ("released", "started")):
            answer["state"] = JobPhase.WAITING
        return answer
    if live.parked:
        answer["state"] = JobPhase.WAITING
    elif (
        job.state in ENDED and not job.nodes and (live.ours or answer["state"] == JobPhase.WAITING)
    ):
        answer["state"] = JobPhase.ENDED
    elif live.placed_at is not None:
        answer["state"] = JobPhase.RELEASED
        answer["slurm"]["placed_at"] = live.placed_at
    elif silence is None and not (live.by_hand or live.passed) and _is_newer(job, reader):
        # The record of a job that we placed goes with its start.
        answer["state"] = "not recorded yet"
    elif live.ours or answer["state"] == JobPhase.WAITING:
        answer["state"] = JobPhase.LEFT
        answer["slurm"]["why"] = _why_left_to_slurm(live)
    else:
        answer["state"] = "not ours"
        answer["slurm"]["why"] = _why_not_ours(job, known)
    return answer


def _is_newer(job: SlurmJob, reader: Reader) -> bool:
    """Whether a job has started since the copy was written."""
    if reader.copy_age_s is None or job.state == "PENDING" or job.start_s is None:
        return False
    if not asks_for_gpus(job) or gpu_types(job):
        return False  # such a job is never placed
    return job.start_s > time.time() - reader.copy_age_s - _LAG_S


def _why_not_ours(job: SlurmJob, known: Answers) -> str | None:
    """Why Slurm places a job that was not parked; None: not known."""
    if not (asks_for_gpus(job) or asks_for_shards(job)):
        return "it asks for no GPUs"
    if gpu_types(job):
        return None if known.nodes is None else type_sentence(job, known.nodes)
    return why_by_form(job)


def _why_left_to_slurm(live: LiveJob) -> str | None:
    """Why Slurm alone places a job that was parked; None: not known."""
    if live.left is not None:
        return live.left
    if live.passed:
        return (
            "the selector was away, so the gate opened by itself and Slurm placed the job alone,"
            " as if we were not installed"
        )
    if live.by_hand:
        return "an operator released it, or the selector left it to Slurm"
    return "it was cancelled" if live.job.state == "CANCELLED" else None
