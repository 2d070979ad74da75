"""``gpu-aware status``: gate, heartbeat, numbers of jobs, last rounds, age of the profile."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.output import json_option, pairs, print_json, say, table
from slurm_gpu_aware.time_text import age, stamp

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.selector.ledger_reader import Reader

__all__ = ["command"]

_SHOWN_STATES = ("planned", "prepared", "released", "started")
_ROUND = ("started_at", "took_ms", "trigger", "queued", "placed", "waiting")
"""Fields of a round in the output."""


@click.command("status")
@click.option(
    "--rounds", "count", type=click.IntRange(0, 10_000), default=5, help="Number of rounds to show."
)
@json_option
@pass_context
def command(context: Context, count: int, as_json: bool) -> None:
    """Show the gate, the heartbeat, the numbers of parked and placed jobs, and the last rounds.

    \b
    Examples:
      gpu-aware status
      gpu-aware status --json
    """
    from slurm_gpu_aware.gate.job_view import live_jobs, parked_of
    from slurm_gpu_aware.gate.liveness import gate_state, selector_silence
    from slurm_gpu_aware.selector.ledger_reader import open_reader, still_open

    config = context.config()
    now = time.time()
    with open_reader(config) as reader:
        answer = _from_store(reader, max(1, count))
        decisions = reader.ledger.open_decisions()
        note = reader.note()
    gate = gate_state(config)
    silence = selector_silence(gate, config, now)
    answer["gate"] = None if gate is None else gate.as_json()
    answer["selector_away"] = None if silence is None else silence.as_json()
    jobs = None if gate is None else live_jobs(config)
    if jobs is not None:
        parked = parked_of(jobs)
        answer["parked"] = len(parked)
        answer["in_holding_pool"] = sum(job.pooled for job in parked)
    states = [d.state for d in still_open(decisions, jobs, away=silence is not None)]
    answer["placed"] = {state: states.count(state) for state in _SHOWN_STATES}
    if as_json:
        print_json(answer)
        return
    click.echo(_text(answer, now, config))
    if note:
        say(note)


def _from_store(reader: Reader, count: int) -> dict[str, Any]:
    from slurm_gpu_aware.selector.ledger_reader import event_json
    from slurm_gpu_aware.store.profiles import load_profile

    rounds = reader.ledger.last_rounds(count)
    profile = load_profile(reader.store)
    times = list(profile.taken_at.values())
    return {
        "rounds": [{name: getattr(r, name) for name in _ROUND} for r in rounds],
        "parked": rounds[0].waiting if rounds else None,
        "in_holding_pool": None,
        "gate_events": [event_json(e) for e in reader.ledger.events("")[-3:]],
        "profile": {
            "nodes": len(profile.taken_at),
            "gpus": len(profile.gpus),
            "unseen": len(profile.unseen),
            "classes": sorted(profile.scores),
            "newest": max(times, default=None),
            "oldest": min(times, default=None),
            "faults": sum(len(f) for f in profile.faults.values()),
        },
    }


def _text(answer: Mapping[str, Any], now: float, config: Config) -> str:
    rounds = answer["rounds"]
    profile = answer["profile"]
    last = rounds[0]["started_at"] if rounds else None
    entries: list[tuple[str, object]] = [
        ("selector", _selector_text(answer, last, now, config)),
        ("gate", _gate_text(answer["gate"])),
        ("parked", _parked_text(answer)),
        ("placed", ", ".join(f"{n} {state}" for state, n in answer["placed"].items() if n) or "0"),
        ("profile", _profile_text(profile, now)),
    ]
    blocks = [pairs(entries)]
    if rounds:
        rows = [
            (
                stamp(r["started_at"]),
                r["trigger"],
                r["queued"],
                r["placed"],
                r["waiting"],
                age(r["took_ms"] / 1000),
            )
            for r in rounds
        ]
        headers = ["last rounds", "trigger", "queued", "placed", "waiting", "took"]
        blocks.append(table(headers, rows, right=["queued", "placed", "waiting", "took"]))
    return "\n\n".join(blocks)


def _selector_text(
    answer: Mapping[str, Any], last: float | None, now: float, config: Config
) -> str:
    """Whether the selector runs, by its heartbeat: rounds without changes are not recorded."""
    gate = answer["gate"]
    seen = "no round yet" if last is None else f"last recorded round {age(now - last)} ago"
    if gate is None:
        return seen
    if not gate["exists"]:
        return f"does not run ({seen}); start it: systemctl start gpu-aware-selectd"
    quiet = config.gate.lease_s - gate["left_s"]
    if answer["selector_away"] is not None:
        return f"no heartbeat for {age(quiet)}: it may be down; see gpu-aware doctor"
    return f"runs, last heartbeat {age(max(quiet, 0.0))} ago, {seen}"


def _parked_text(answer: Mapping[str, Any]) -> str:
    if answer["parked"] is None:
        return "unknown"
    pooled = answer["in_holding_pool"]
    return f"{answer['parked']}" + (f", {pooled} of them in the holding pool" if pooled else "")


def _gate_text(gate: Mapping[str, Any] | None) -> str:
    if gate is None:
        return "unknown: Slurm does not answer, or hides reservations from you"
    if not gate["exists"]:
        return "open: there is no reservation, and jobs start as usual"
    return f"closed, held by reservation {gate['reservation']} for {age(gate['left_s'])} more"


def _profile_text(profile: Mapping[str, Any], now: float) -> str:
    if not profile["gpus"]:
        return "none: all GPUs count as equal; run gpu-aware-profile sweep, then import times"
    classes = ", ".join(profile["classes"]) or "none"
    text = f"{profile['gpus']} GPUs on {profile['nodes']} nodes, classes {classes}"
    if profile["newest"] is not None:
        text += f", {age(now - profile['newest'])} old"
        if profile["oldest"] < profile["newest"] - 3600:
            text += f" (oldest node {age(now - profile['oldest'])})"
    if profile["unseen"]:
        text += f"; no sweep has seen {profile['unseen']} of these GPUs: gpu-aware doctor"
    if profile["faults"]:
        text += f"; {profile['faults']} faults in the newest probes"
    return text
