"""Explanation of a job: one answer from the ledger and Slurm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.job_view import LiveJob, find_job, live_jobs
from slurm_gpu_aware.gate.liveness import gate_state, selector_silence
from slurm_gpu_aware.model.job_phase import OPEN_DECISION, JobPhase
from slurm_gpu_aware.selector.ledger_reader import Reader, event_json, reason_for, waiting_of
from slurm_gpu_aware.store.ledger import Decision, Event

__all__ = ["explain_job"]


def explain_job(reader: Reader, config: Config, job_id: str) -> dict[str, Any]:
    """The answer about a job, as JSON values.

    ``selector_away`` and the sentence ``away`` tell of a selector that is silent for too long; the
    ledger then lacks the events since.
    """
    answer = _look_up(reader, job_id)
    if answer["state"] in ("unknown", JobPhase.WAITING, *OPEN_DECISION):
        answer = _ask_slurm(answer, reader, config)
    return answer


def _look_up(reader: Reader, job_id: str) -> dict[str, Any]:
    """The answer of the ledger alone."""
    decisions = reader.ledger.decisions(job_id)
    events = reader.ledger.events(job_id)
    rounds = reader.ledger.last_rounds(1)
    waiting = reason_for(job_id, waiting_of(rounds[0] if rounds else None))
    placed = decisions[-1] if decisions and decisions[-1].state != JobPhase.WAITING else None
    if waiting and placed is not None and placed.decided_at >= rounds[0].started_at:
        waiting = None  # placed since
    tasks = _tasks(reader, job_id) if not decisions else []
    state = _state(decisions, events, waiting)
    return {
        "job_id": job_id,
        "state": "array" if tasks and not waiting else state,
        "waiting": dict(waiting) if waiting else None,
        "waiting_as_of": rounds[0].started_at if rounds and waiting else None,
        "decisions": [asdict(d) for d in decisions],
        "events": [event_json(e) for e in events],
        "tasks": tasks,
        "slurm": None,
        "selector_away": None,
    }


def _state(
    decisions: Sequence[Decision], events: Sequence[Event], waiting: Mapping[str, Any] | None
) -> str:
    """The phase by the ledger, or ``unknown``.

    After a failed or withdrawn placing the job waits.
    """
    if waiting:
        return JobPhase.WAITING
    if decisions:
        return decisions[-1].state
    kinds = {e.kind for e in events}
    if kinds & {"ended", "started"}:
        return "ended" if "ended" in kinds else "started"
    if "opened_by_hand" in kinds:
        return JobPhase.OPENED
    waits = kinds & {"parked", "reparked", "requeued"}
    return JobPhase.WAITING if waits else "unknown"


def _tasks(reader: Reader, job_id: str) -> list[str]:
    """Array tasks that the ledger knows under the id of their array."""
    rows = reader.store.query(
        "SELECT DISTINCT job_id FROM decisions WHERE job_id GLOB ? ORDER BY id", (f"{job_id}_*",)
    )
    return [str(row["job_id"]) for row in rows]


def _ask_slurm(answer: dict[str, Any], reader: Reader, config: Config) -> dict[str, Any]:
    """The answer with Slurm's state of a job that waits, runs, or is not in the ledger."""
    jobs = live_jobs(config)
    if jobs is None:
        return answer
    silence = selector_silence(gate_state(config), config)
    job = find_job(jobs, answer["job_id"])
    if job is not None and job.id != answer["job_id"]:  # Slurm's number of an array task
        known = _look_up(reader, job.id)
        answer = known if known["state"] != "unknown" else answer
    if silence is not None:
        answer["selector_away"] = silence.as_json()
        answer["away"] = silence.sentences()
    if job is None:
        if silence is not None and answer["state"] != "unknown":
            answer["slurm"] = {"state": None, "reason": None, "parked": False, "ended": True}
        return answer
    answer["slurm"] = {
        "state": job.state,
        "reason": job.reason,
        "parked": job.parked,
        "ended": job.ended,
    }
    if answer["state"] in OPEN_DECISION:
        # The selector died before it opened the gate, or the copy is older than a requeue.
        if job.parked and (silence is not None or answer["state"] in ("released", "started")):
            answer["state"] = JobPhase.WAITING
        return answer
    if job.parked:
        answer["state"] = JobPhase.WAITING
    elif job.placed_at is not None:
        answer["state"] = JobPhase.RELEASED
        answer["slurm"]["placed_at"] = job.placed_at
    elif job.ours or answer["state"] == JobPhase.WAITING:
        answer["state"] = JobPhase.LEFT
        answer["slurm"]["why"] = _why_left_to_slurm(job)
    else:
        answer["state"] = "not ours"
    return answer


def _why_left_to_slurm(job: LiveJob) -> str | None:
    """Why Slurm alone places a job that was parked; None: not known."""
    if job.passed:
        return (
            "the selector was away, so the gate opened by itself and Slurm placed the job alone,"
            " as if we were not installed"
        )
    if job.by_hand:
        return "an operator released it, or the selector left it to Slurm"
    return "it was cancelled" if job.state == "CANCELLED" else None
