"""``gpu-aware explain``: why a job got what it got, or why it waits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.explain_text import OPEN, explain_text
from slurm_gpu_aware.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from slurm_gpu_aware.cli.ledger_reader import Reader
    from slurm_gpu_aware.cli.live import LiveJob
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.store.ledger import Decision, Event

__all__ = ["check_job_id", "command"]

_JOB_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?\Z")
_TASKS = re.compile(r"([0-9]{1,10})_\[([0-9]{1,10})[0-9,:%.-]*\]\Z")
"""Waiting tasks of an array as ``queue`` and ``squeue`` show them: ``44_[3-9]``."""
_UNPLACED = ("reparked", "failed")
"""States of a decision whose job waits at the gate again."""


def check_job_id(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of arguments that are one job id or several."""
    for job_id in value if isinstance(value, tuple) else (value,):
        if not _JOB_ID.match(job_id):
            raise click.BadParameter(f"{job_id!r} is no job id; expected 123, or 123_4 for a task")
    return value


def _job_id(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback: one job id; of several tasks the first."""
    tasks = _TASKS.match(value)
    if tasks is None:
        return check_job_id(ctx, param, value)
    first = f"{tasks[1]}_{tasks[2]}"
    say(f"This is task {first}, the first of {value}.")
    return first


@click.command("explain")
@click.argument("job_id", metavar="JOBID", callback=_job_id)
@json_option
@pass_context
def command(context: Context, job_id: str, as_json: bool) -> None:
    """Say why a job got its GPUs, or why it waits.

    Shows what was asked, which cells of the locality x variability matrix were tried, which sets
    were considered, what was chosen, the predicted slowdown, how long it took, and what happened
    since. Works for every user; the exit code is 1 if nobody knows the job.

    \b
    Examples:
      gpu-aware explain 1234
      gpu-aware explain 1234_7 --json
    """
    from slurm_gpu_aware.cli.ledger_reader import open_reader

    config = context.config()
    with open_reader(config) as reader:
        answer = _look_up(reader, job_id)
        if answer["state"] in ("unknown", "parked", *OPEN):
            answer = _ask_slurm(answer, reader, config)
        note = reader.note()
    if as_json:
        print_json({k: v for k, v in answer.items() if k != "away"})
    else:
        click.echo(explain_text(answer))
        if note:
            say(note)
    if answer["state"] == "unknown":
        raise click.exceptions.Exit(1)


def _look_up(reader: Reader, job_id: str) -> dict[str, Any]:
    """What the ledger knows of a job, JSON-able."""
    from slurm_gpu_aware.cli.ledger_reader import decision_json, event_json, reason_for, waiting_of

    decisions = reader.ledger.decisions(job_id)
    events = reader.ledger.events(job_id)
    rounds = reader.ledger.last_rounds(1)
    waiting = reason_for(job_id, waiting_of(rounds[0] if rounds else None))
    placed = decisions[-1] if decisions and decisions[-1].state not in _UNPLACED else None
    if waiting and placed is not None and placed.decided_at >= rounds[0].started_at:
        waiting = None  # placed since
    tasks = _tasks(reader, job_id) if not decisions else []
    state = _state(decisions, events, waiting)
    return {
        "job_id": job_id,
        "state": "array" if tasks and not waiting else state,
        "waiting": dict(waiting) if waiting else None,
        "waiting_as_of": rounds[0].started_at if rounds and waiting else None,
        "decisions": [decision_json(d) for d in decisions],
        "events": [event_json(e) for e in events],
        "tasks": tasks,
        "slurm": None,
        "selector_away": None,
    }


def _state(
    decisions: Sequence[Decision], events: Sequence[Event], waiting: Mapping[str, Any] | None
) -> str:
    """``parked``, the state of the newest decision, ``released by hand``, or ``unknown``.

    A placing that failed, or that was taken back, leaves its job parked.
    """
    if waiting:
        return "parked"
    if decisions:
        return "parked" if decisions[-1].state in _UNPLACED else decisions[-1].state
    kinds = {e.kind for e in events}
    if kinds & {"ended", "started"}:
        return "ended" if "ended" in kinds else "started"
    if "opened_by_hand" in kinds:
        return "released by hand"
    return "parked" if kinds & {"parked", "reparked", "requeued"} else "unknown"


def _tasks(reader: Reader, job_id: str) -> list[str]:
    """Array tasks that the ledger knows under the id of their array."""
    rows = reader.store.query(
        "SELECT DISTINCT job_id FROM decisions WHERE job_id GLOB ? ORDER BY id", (f"{job_id}_*",)
    )
    return [str(row["job_id"]) for row in rows]


def _ask_slurm(answer: dict[str, Any], reader: Reader, config: Config) -> dict[str, Any]:
    """The answer with what Slurm says of a job that waits, runs, or that the ledger does not know.

    Where Slurm answers, ``selector_away`` says how long the selector has been silent if that is
    longer than it should; then nobody writes down what becomes of jobs.
    """
    from slurm_gpu_aware.cli.live import find_job, gate_state, live_jobs
    from slurm_gpu_aware.cli.liveness import away

    jobs = live_jobs(config)
    if jobs is None:
        return answer
    gone = away(gate_state(config), config)
    job = find_job(jobs, answer["job_id"])
    if job is not None and job.id != answer["job_id"]:  # Slurm's own number of an array task
        known = _look_up(reader, job.id)
        answer = known if known["state"] != "unknown" else answer
    if gone is not None:
        answer["selector_away"] = gone.as_json()
        answer["away"] = gone.sentences()
    if job is None:
        if gone is not None and answer["state"] != "unknown":
            answer["slurm"] = {"state": None, "reason": None, "parked": False, "ended": True}
        return answer
    answer["slurm"] = {
        "state": job.state,
        "reason": job.reason,
        "parked": job.parked,
        "ended": job.ended,
    }
    if answer["state"] in OPEN:
        # The selector died before it opened the gate, or the job is back since the copy was made.
        if job.parked and (gone is not None or answer["state"] in ("released", "started")):
            answer["state"] = "parked"
        return answer
    if job.parked:
        answer["state"] = "parked"
    elif job.placed_at is not None:
        answer["state"] = "placed"
        answer["slurm"]["placed_at"] = job.placed_at
    elif job.ours or answer["state"] == "parked":
        answer["state"] = "left to Slurm"
        answer["slurm"]["why"] = _why_alone(job)
    else:
        answer["state"] = "not ours"
    return answer


def _why_alone(job: LiveJob) -> str | None:
    """Why a job that was parked is Slurm's alone now; None: Slurm does not tell."""
    if job.passed:
        return (
            "the selector was away, so the gate opened by itself and Slurm placed the job alone,"
            " as if we were not installed"
        )
    if job.by_hand:
        return "an operator released it, or the selector left it to Slurm"
    return "it was cancelled" if job.state == "CANCELLED" else None
