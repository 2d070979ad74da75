"""``gpu-aware queue``: parked jobs in order with their reasons, and placed jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.output import clean, json_option, paragraph, print_json, say, table
from slurm_gpu_aware.time_text import stamp

__all__ = ["command"]

_PLACED = ("planned", "prepared", "released", "started")


@click.command("queue")
@click.option("--user", "-u", metavar="NAME", help="Only jobs of this user.")
@json_option
@pass_context
def command(context: Context, user: str | None, as_json: bool) -> None:
    """List parked jobs in Slurm's order with their reasons, and placed jobs with their GPUs.

    \b
    Examples:
      gpu-aware queue
      gpu-aware queue -u alice --json
    """
    from slurm_gpu_aware.gate.job_view import live_jobs, parked_of
    from slurm_gpu_aware.gate.liveness import gate_state, selector_silence
    from slurm_gpu_aware.selector.ledger_reader import open_reader, still_open, waiting_of

    config = context.config()
    with open_reader(config) as reader:
        rounds = reader.ledger.last_rounds(1)
        waiting = waiting_of(rounds[0] if rounds else None)
        open_decisions = reader.ledger.open_decisions()
        note = reader.note()
    live = live_jobs(config)
    silence = None if live is None else selector_silence(gate_state(config), config)
    parked = [
        _parked(
            job.shown, job.user, job.gpus, job.submit_s, job.reason, waiting, silence is not None
        )
        for job in parked_of(live or ())
    ]
    if live is None:
        say("Slurm does not answer; this is the queue of the selector's last round.")
        parked = [_parked(j, None, None, None, None, waiting) for j in waiting]
    placed = [
        {
            "job_id": d.job_id,
            "user": d.user,
            "state": d.state,
            "nodes": list(d.nodes),
            "slots": [list(s) for s in d.slots],
            "exact": d.exact,
            "slowdown": d.slowdown,
            "decided_at": d.decided_at,
        }
        for d in still_open(open_decisions, live, away=silence is not None)
        if d.state in _PLACED
    ]
    if user is not None:
        parked = [p for p in parked if p["user"] == user]
        placed = [p for p in placed if p["user"] == user]
    if as_json:
        absence = None if silence is None else silence.as_json()
        print_json({"parked": parked, "placed": placed, "selector_away": absence})
        return
    click.echo(_text(parked, placed, user))
    if silence is not None:
        say(paragraph(silence.sentences("parked jobs")))
    if note:
        say(note)


def _parked(
    job_id: str,
    user: str | None,
    gpus: int | None,
    submitted: float | None,
    slurm_reason: str | None,
    waiting: Mapping[str, Mapping[str, Any]],
    away: bool = False,
) -> dict[str, Any]:
    from slurm_gpu_aware.selector.ledger_reader import reason_for

    entry = reason_for(job_id.partition("_[")[0], waiting)
    if entry is not None:
        reason = str(entry.get("reason") or "no reason was recorded")
        if away:
            reason += " (when the selector last looked)"
    elif slurm_reason in ("Licenses", "Priority", "Resources", "None", None):
        reason = "waits for the selector, which is away" if away else "waits for the next round"
    else:
        reason = f"Slurm holds it: {slurm_reason}"
    return {
        "job_id": job_id,
        "user": user,
        "gpus": gpus,
        "submitted_at": submitted,
        "reason": reason,
        "shadow_start": entry.get("shadow_start_s") if entry else None,
    }


def _text(parked: list[dict[str, Any]], placed: list[dict[str, Any]], user: str | None) -> str:

    blocks = [f"No job of {clean(user)} is parked." if user else "No job is parked."]
    if parked:
        rows = [
            (p["job_id"], p["user"], p["gpus"], stamp(p["submitted_at"])[5:16], p["reason"])
            for p in parked
        ]
        blocks = [
            f"Parked ({len(parked)}, in Slurm's order)\n"
            + table(["job", "user", "gpus", "submitted", "why it waits"], rows, right=["gpus"])
        ]
    if placed:
        rows = [
            (
                p["job_id"],
                p["user"],
                p["state"],
                f"{p['slowdown']:.2f}",
                place_text(p["nodes"], p["slots"], p["exact"]),
            )
            for p in placed
        ]
        blocks.append(
            f"Placed ({len(placed)})\n"
            + table(["job", "user", "state", "slowdown", "place"], rows, right=["slowdown"])
        )
    return "\n\n".join(blocks)
