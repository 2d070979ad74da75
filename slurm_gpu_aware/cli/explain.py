"""``gpu-aware explain``: why a job got what it got, or why it waits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.output import (
    age,
    json_option,
    pairs,
    paragraph,
    print_json,
    say,
    stamp,
    table,
)

if TYPE_CHECKING:
    from slurm_gpu_aware.cli.reading import Reader
    from slurm_gpu_aware.config import Config
    from slurm_gpu_aware.store.ledger import Decision, Event

__all__ = ["check_job_id", "command", "place_text"]

_JOB_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?\Z")
_MAX_ROWS = 12
_UNPLACED = ("reparked", "failed")
"""States of a decision whose job waits at the gate again."""


def check_job_id(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of arguments that are one job id or several."""
    for job_id in value if isinstance(value, tuple) else (value,):
        if not _JOB_ID.match(job_id):
            raise click.BadParameter(f"{job_id!r} is no job id; expected 123, or 123_4 for a task")
    return value


@click.command("explain")
@click.argument("job_id", metavar="JOBID", callback=check_job_id)
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
    from slurm_gpu_aware.cli.reading import open_reader

    config = context.config()
    with open_reader(config) as reader:
        answer = _look_up(reader, job_id)
        if answer["state"] in ("unknown", "parked"):
            answer = _ask_slurm(answer, reader, config)
        note = reader.note()
    if as_json:
        print_json(answer)
    else:
        click.echo(_text(answer))
        if note:
            say(note)
    if answer["state"] == "unknown":
        raise click.exceptions.Exit(1)


def _look_up(reader: Reader, job_id: str) -> dict[str, Any]:
    """What the ledger knows of a job, JSON-able."""
    from slurm_gpu_aware.cli.reading import decision_json, event_json, reason_for, waiting_of

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
    """The answer with what Slurm says of a job that the ledger does not know by this id."""
    from slurm_gpu_aware.cli.live import find_job

    job = find_job(config, answer["job_id"])
    if job is None:
        return answer
    if job.id != answer["job_id"]:  # Slurm's own number of an array task
        known = _look_up(reader, job.id)
        if known["state"] != "unknown":
            return known
    answer["slurm"] = {"state": job.state, "reason": job.reason, "parked": job.parked}
    if job.parked:
        answer["state"] = "parked"
    elif job.placed_at is not None:
        answer["state"] = "placed"
        answer["slurm"]["placed_at"] = job.placed_at
    else:
        answer["state"] = "left to Slurm" if answer["state"] == "parked" else "not ours"
    return answer


def place_text(nodes: Sequence[str], slots: Sequence[Sequence[int]], exact: bool = True) -> str:
    """``n1: 0,1; n2: 0,1``; only the node names where Slurm picks the GPUs."""
    if not exact:
        return ", ".join(nodes)
    return "; ".join(
        f"{node}: {','.join(str(s) for s in chosen)}"
        for node, chosen in zip(nodes, slots, strict=True)
    )


def _text(answer: Mapping[str, Any]) -> str:
    job_id, state = answer["job_id"], answer["state"]
    blocks = [f"Job {job_id}: {state}"]
    if answer["tasks"]:
        blocks.append(_tasks_text(answer["tasks"]))
    elif state == "unknown":
        blocks.append(
            paragraph(
                f"Neither the ledger nor Slurm knows job {job_id}. It may be too old, or the id"
                " may be mistyped."
            )
        )
    elif state == "not ours":
        blocks.append(_not_ours(answer["slurm"]))
    elif state == "placed":
        blocks.append(_placed(answer["slurm"]))
    elif state == "left to Slurm":
        blocks.append(_left_to_slurm(answer["slurm"], answer["events"]))
    if state == "parked":
        blocks.append(_parked_text(answer))
    if answer["decisions"]:
        blocks.append(_decision_text(answer["decisions"][-1]))
        if len(answer["decisions"]) > 1:
            blocks.append(_earlier_text(answer["decisions"][:-1]))
    if answer["events"]:
        rows = [(stamp(e["at"]), e["kind"], _flat(e["detail"])) for e in answer["events"]]
        blocks.append("What happened\n" + table(["time", "event", "detail"], rows))
    return "\n\n".join(blocks)


def _tasks_text(tasks: Sequence[str]) -> str:
    shown = ", ".join(tasks[:_MAX_ROWS]) + (", ..." if len(tasks) > _MAX_ROWS else "")
    return paragraph(f"A job array; each task was placed by itself: {shown}. Explain one of them.")


def _not_ours(slurm: Mapping[str, Any]) -> str:
    return paragraph(
        f"This job is not placed by us; Slurm handles it alone (state {slurm['state']}, reason"
        f" {slurm['reason'] or 'None'}). That is so for jobs without GPUs, with place=off, and for"
        " forms that cannot name exact GPUs (direct srun --gpus, heterogeneous and scrontab jobs)."
    )


def _placed(slurm: Mapping[str, Any]) -> str:
    return paragraph(
        f"It was placed at {stamp(slurm['placed_at'])} (state {slurm['state']}); the ledger as you"
        " can read it does not tell of that yet. Ask again in a moment."
    )


def _left_to_slurm(slurm: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    told = [e["detail"].get("left_to_slurm") for e in events if e["kind"] == "released"]
    why = told[-1] if told else None
    return paragraph(
        f"It was parked; now its gate is open, and Slurm handles it alone (state {slurm['state']},"
        f" reason {slurm['reason'] or 'None'}): "
        f"{why or 'it was released by hand, it was cancelled, or the selector was away'}."
    )


def _parked_text(answer: Mapping[str, Any]) -> str:
    waiting = answer["waiting"]
    if waiting is None:
        slurm = answer["slurm"] or {}
        reason = slurm.get("reason")
        newest = answer["decisions"][-1] if answer["decisions"] else {}
        if newest.get("state") == "failed":
            why = (newest.get("outcome") or {}).get("why") or "no reason was recorded"
            return paragraph(f"It could not be placed: {why}. The next round tries again.")
        if reason and reason not in ("Licenses", "Priority", "Resources", "None"):
            return paragraph(f"Slurm itself holds it: {reason}. It is planned when that is over.")
        return paragraph("It waits for the selector's next round.")
    lines = [paragraph(f"Why it waits: {waiting.get('reason') or 'no reason was recorded'}")]
    shadow = waiting.get("shadow_start_s")
    if shadow:
        lines.append(
            paragraph(
                f"GPUs are reserved for it: it starts by {stamp(float(shadow))} at the latest."
            )
        )
    lines.append(f"As of the round at {stamp(answer['waiting_as_of'])}.")
    return "\n".join(lines)


def _decision_text(d: Mapping[str, Any]) -> str:
    where = place_text(d["nodes"], d["slots"], d["exact"])
    why = dict(d["why"])
    entries: list[tuple[str, object]] = [
        ("user", d["user"]),
        ("asked", _flat(d["asked"])),
        ("submitted", stamp(d["submitted_at"])),
        ("decided", f"{stamp(d['decided_at'])}, took {age(d['took_ms'] / 1000)}"),
        ("policy", d["policy"]),
        ("chosen", where + ("" if d["exact"] else " (Slurm picks the GPUs)")),
        ("slowdown", f"{d['slowdown']:.3f} predicted (level {d['level']}, V {d['score']:.3f})"),
        ("clock", f"{d['clock_mhz']} MHz" if d["clock_mhz"] else "default"),
    ]
    if d["victims"]:
        entries.append(("preempts", ", ".join(d["victims"])))
    if summary := why.pop("summary", None):
        entries.append(("why", summary))
    blocks = []
    for name, value in why.items():
        title = name.replace("_", " ")
        if isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            blocks.append(f"{title.capitalize()}\n{_rows(value)}")
        else:
            entries.append((title, _short(value)))
    return "\n\n".join([pairs(entries), *blocks])


def _rows(records: Sequence[Mapping[str, Any]]) -> str:
    """A table of equal records; keys become columns, long lists are cut."""
    headers: list[str] = []
    for record in records:
        headers += [k for k in record if k not in headers]
    right = [h for h in headers if all(isinstance(r.get(h), int | float | None) for r in records)]
    rows = [[_short(r.get(h)) for h in headers] for r in records[:_MAX_ROWS]]
    text = table(headers, rows, right=right)
    more = len(records) - _MAX_ROWS
    return text + (f"\n... and {more} more, with --json" if more > 0 else "")


def _earlier_text(decisions: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (stamp(d["decided_at"]), place_text(d["nodes"], d["slots"], d["exact"]), d["state"])
        for d in decisions
    ]
    return "Earlier placements\n" + table(["time", "place", "became"], rows)


def _flat(detail: Mapping[str, Any]) -> str:
    """``key=value`` pairs on one line; what is not set is left out."""
    shown = {k: v for k, v in detail.items() if v not in (None, "", [], {}, ())}
    return ", ".join(f"{k}={_short(v)}" for k, v in shown.items())


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(
            "[" + _short(v) + "]" if isinstance(v, list | tuple) else _short(v) for v in value
        )
    if isinstance(value, Mapping):
        return _flat(value)
    return "" if value is None else str(value)
