"""``gpu-aware queue`` and ``gpu-aware status``: jobs, gate, heartbeat, rounds, profile."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.explain import NO_HOLD, no_slurm
from slurm_gpu_aware.cli.job_text import held_words, slurm_words
from slurm_gpu_aware.cli.options import Context, pass_context
from slurm_gpu_aware.cli.output import (
    blocks_text,
    json_option,
    paragraph,
    place_text,
    print_json,
    say,
)
from slurm_gpu_aware.features.power.commands import last_reading, power_line
from slurm_gpu_aware.model.job_phase import OPEN_DECISION
from slurm_gpu_aware.page.blocks import Pairs, Sentences, Table, Words
from slurm_gpu_aware.time_text import counted, duration, stamp

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.selector.job_answers import Answers, Reader
    from slurm_gpu_aware.selector.live_jobs import LiveJob
    from slurm_gpu_aware.slurm.records import SlurmJob

_ROUND = ("started_at", "took_ms", "trigger", "queued", "placed", "waiting")
"""Fields of a round in the output."""
_PLACED = (
    *("job_id", "user", "state", "nodes", "slots", "gpus_per_node", "exact"),
    *("slowdown", "decided_at"),
)
"""Fields of a placed job in the output."""
_WHO = ("job", "user", "gpus", "submitted")
_WIDEST_ID = 31  # of an array with the numbers of its tasks, as squeue cuts it


@click.command("queue")
@click.option("--user", "-u", metavar="NAME", help="Only jobs of this user.")
@json_option
@pass_context
def queue(context: Context, user: str | None, as_json: bool) -> None:
    """List parked jobs with their reasons, jobs left to Slurm, and placed jobs with their GPUs.

    Jobs that wait stand in the order of Slurm's priority, highest first, and of their submission;
    placed jobs in the order in which they were placed.

    \b
    Examples:
      gpu-aware queue
      gpu-aware queue -u alice --json
    """
    from slurm_gpu_aware.selector.job_answers import Answers, open_reader

    config = context.config()
    with open_reader(config) as reader:
        known = Answers(reader, config)
        answer, silence = queue_answer(known, user), known.slurm.silence
        note = reader.note()
    if error := known.slurm.error:
        say(paragraph(f"{no_slurm(error)} This is the queue of the selector's last round."))
    if as_json:
        print_json(answer)
        return
    click.echo(blocks_text(queue_blocks(answer, user)))
    if silence is not None:
        say(paragraph(silence.sentences("parked jobs")))
    if note:
        say(note)


def queue_answer(known: Answers, user: str | None = None) -> dict[str, Any]:
    """Parked, left and placed jobs as JSON values; ``user``: only of this one."""
    from slurm_gpu_aware.selector.job_answers import decision_json, left_of, still_open
    from slurm_gpu_aware.selector.live_jobs import parked_of
    from slurm_gpu_aware.slurm.records import components_of

    ledger, waiting = known.reader.ledger, known.waiting
    jobs, silence, *_ = known.slurm
    live, away = None if jobs is None else list(jobs.values()), silence is not None
    others = components_of(one.job for one in live or ())
    if live is None:
        parked = [_parked(job_id, entry, None, away) for job_id, entry in waiting.lines]
    else:
        parked = [
            _parked(_shown(one.job), waiting.of(one.job.id), one.reason, away, one.left)
            | _asks(one.job, others)
            for one in parked_of(live)
        ]
    answer = {
        "parked": parked,
        "left": [_left(one, why, others) for one, why in left_of(live or (), known.reader)],
        "placed": [
            {name: value for name, value in decision_json(d).items() if name in _PLACED}
            for d in still_open(ledger.open_decisions(), live, away=away)
            if d.state in OPEN_DECISION
        ],
    }
    if user is not None:
        answer = {k: [one for one in jobs if one["user"] == user] for k, jobs in answer.items()}
    return {**answer, "selector_away": None if silence is None else asdict(silence)}


def _shown(job: SlurmJob) -> str:
    """The id with the tasks of an unsplit array record: ``98_[1-3]``."""
    return f"{job.id}_[{job.array_tasks}]" if job.array_tasks else job.id


def _asks(job: SlurmJob, others: Mapping[int, Sequence[SlurmJob]]) -> dict[str, Any]:
    """Who asks for how many GPUs; ``others``: the later components of heterogeneous jobs."""
    counts = [one.req_tres.get("gres/gpu") for one in (job, *others.get(job.raw_id, ()))]
    return {
        "user": job.user,
        "gpus": sum(filter(None, counts)) or None,  # None: Slurm does not count GPUs
        "submitted_at": job.submit_s,
    }


def _left(live: LiveJob, why: str, others: Mapping[int, Sequence[SlurmJob]]) -> dict[str, Any]:
    """A job that waits for Slurm alone."""
    asks = _asks(live.job, others)
    return {"job_id": _shown(live.job), **asks, "reason": live.reason, "left": why}


def _parked(
    job_id: str,
    entry: Mapping[str, Any] | None,
    slurm_reason: str | None,
    away: bool,
    left: str | None = None,
) -> dict[str, Any]:
    """A parked job and why it waits. ``entry``: its own in the last round; ``left``: why Slurm will
    choose its GPUs.
    """
    if entry is not None:
        reason = held_words(str(entry.get("reason") or "no reason was recorded"))
        reason += " (when the selector last looked)" if away else ""
    elif slurm_reason in NO_HOLD:
        reason = "waits for the selector, which is away" if away else "waits for the next round"
    else:
        reason = slurm_words(str(slurm_reason))
    reason += f"; Slurm chooses its GPUs: {left}" if left else ""
    return {
        "job_id": job_id,
        "user": None,
        "gpus": None,
        "submitted_at": None,
        "reason": reason,
        "shadow_start": entry.get("shadow_start_s") if entry else None,
    }


def queue_blocks(answer: Mapping[str, Any], user: str | None = None) -> list[Words]:
    """The queue; ``answer``: of `queue_answer`."""
    parked, left, placed = answer["parked"], answer["left"], answer["placed"]
    blocks: list[Words] = []
    if parked:
        rows: list[tuple[object, ...]] = [(*_who(p), p["reason"]) for p in parked]
        title = f"Parked ({len(parked)}), highest priority first, of equal ones the oldest"
        blocks.append(Table([*_WHO, "why it waits"], rows, ["gpus"], title))
    else:
        whose = f" of {user}" if user else ""
        blocks.append(Sentences([f"No job{whose} is parked."]))
    if left:
        rows = [(*_who(p), p["reason"], p["left"]) for p in left]
        title = f"Left to Slurm ({len(left)}), highest priority first"
        headers = [*_WHO, "slurm's reason", "why Slurm places it"]
        blocks.append(Table(headers, rows, ["gpus"], title))
    if placed:
        rows = [
            (p["job_id"], p["user"], p["state"], f"{p['slowdown']:.2f}", place_text(p))
            for p in placed
        ]
        headers = ["job", "user", "state", "slowdown", "place"]
        title = f"Placed ({len(placed)}), in the order of placing"
        blocks.append(Table(headers, rows, ["slowdown"], title))
    return blocks


def _who(p: Mapping[str, Any]) -> tuple[object, ...]:
    job_id = p["job_id"]
    if len(job_id) > _WIDEST_ID:
        job_id = f"{job_id[: _WIDEST_ID - 4]}...]"
    return job_id, p["user"], p["gpus"], stamp(p["submitted_at"])[5:16]


@click.command("status")
@click.option(
    "--rounds", "count", type=click.IntRange(0, 10_000), default=5, help="Number of rounds to show."
)
@json_option
@pass_context
def status(context: Context, count: int, as_json: bool) -> None:
    """Show the gate, the heartbeat, the numbers of parked and placed jobs, and the last rounds.

    \b
    Examples:
      gpu-aware status
      gpu-aware status --json
    """
    from slurm_gpu_aware.selector.job_answers import Answers, open_reader

    config = context.config()
    now = time.time()
    with open_reader(config) as reader:
        known = Answers(reader, config)
        answer = status_answer(known, max(1, count))
        note = reader.note()
    if error := known.slurm.error:
        say(paragraph(no_slurm(error)))
    if as_json:
        print_json(answer)
        return
    click.echo(blocks_text(status_blocks(answer, now, config)))
    if note:
        say(note)


def status_answer(known: Answers, count: int) -> dict[str, Any]:
    """The state of the selector as JSON values, with the last ``count`` rounds."""
    from slurm_gpu_aware.selector.job_answers import still_open
    from slurm_gpu_aware.selector.live_jobs import parked_of
    from slurm_gpu_aware.store.database import POLICY, value_of

    config, store = known.config, known.reader.store
    answer = _from_store(known.reader, count)
    answer["policy"] = value_of(store, POLICY) or config.placement.policy
    answer["power"] = last_reading(store)
    jobs, silence, gate, _ = known.slurm
    answer["gate"] = None if gate is None else asdict(gate)
    answer["selector_away"] = None if silence is None else asdict(silence)
    live = None if jobs is None else list(jobs.values())
    if live is not None:
        parked = parked_of(live)
        answer["parked"] = len(parked)
        answer["in_holding_pool"] = sum(one.job.holding_pool is not None for one in parked)
    decisions = still_open(known.reader.ledger.open_decisions(), live, away=silence is not None)
    states = [d.state for d in decisions]
    answer["placed"] = {state: states.count(state) for state in OPEN_DECISION}
    return answer


def _from_store(reader: Reader, count: int) -> dict[str, Any]:
    from slurm_gpu_aware.selector.job_answers import event_json
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


def status_blocks(answer: Mapping[str, Any], now: float, config: Config) -> list[Words]:
    """The state of the selector; ``answer``: of `status_answer`; ``now``: Unix time."""
    rounds, pooled = answer["rounds"], answer["in_holding_pool"]
    last = rounds[0]["started_at"] if rounds else None
    parked = "unknown" if answer["parked"] is None else str(answer["parked"])
    entries = [
        ("selector", _selector_text(answer, last, now, config)),
        ("gate", _gate_text(answer["gate"])),
        ("parked", parked + (f", {pooled} of them in the holding pool" if pooled else "")),
        ("placed", ", ".join(f"{n} {state}" for state, n in answer["placed"].items() if n) or "0"),
        ("policy", answer["policy"]),
        ("power", power_line(answer["power"])),
        ("profile", _profile_text(answer["profile"], now)),
    ]
    if not rounds:
        return [Pairs(entries)]
    counts = ("trigger", "queued", "placed", "waiting")
    rows = [
        (stamp(r["started_at"]), *(r[name] for name in counts), duration(r["took_ms"] / 1000))
        for r in rounds
    ]
    headers = ["last rounds", *counts, "took"]
    return [Pairs(entries), Table(headers, rows, [*counts[1:], "took"])]


def _selector_text(
    answer: Mapping[str, Any], last: float | None, now: float, config: Config
) -> str:
    """Whether the selector runs, by its heartbeat: rounds without changes are not recorded."""
    gate = answer["gate"]
    seen = "no round yet" if last is None else f"last recorded round {duration(now - last)} ago"
    if gate is None:
        return seen
    if gate["why_open"]:
        return f"leaves all jobs to Slurm while the gate is open ({seen})"
    if not gate["exists"]:
        return f"does not run ({seen}); start it: systemctl start gpu-aware-selectd"
    quiet = config.gate.lease_s - gate["left_s"]
    if answer["selector_away"] is not None:
        return f"no heartbeat for {duration(quiet)}: it may be down; see gpu-aware doctor"
    where = "runs" if gate["holder"] is None else f"runs on {gate['holder']}"
    return f"{where}, last heartbeat {duration(max(quiet, 0.0))} ago, {seen}"


def _gate_text(gate: Mapping[str, Any] | None) -> str:
    if gate is None:
        return "unknown: Slurm does not answer, or hides reservations from you"
    if gate["why_open"]:
        return f"open: {gate['why_open']}"
    if not gate["exists"]:
        return "open: there is no reservation, and jobs start as usual"
    return f"closed, held by reservation {gate['reservation']} for {duration(gate['left_s'])} more"


def _profile_text(profile: Mapping[str, Any], now: float) -> str:
    if not profile["gpus"]:
        return "none: all GPUs count as equal; run gpu-aware-profile sweep, then import times"
    classes = ", ".join(profile["classes"]) or "none"
    nodes = counted(profile["nodes"], "node")
    text = f"{counted(profile['gpus'], 'GPU')} on {nodes}, classes {classes}"
    if profile["newest"] is not None:
        text += f", {duration(now - profile['newest'])} old"
        if profile["oldest"] < profile["newest"] - 3600:
            text += f" (oldest node {duration(now - profile['oldest'])})"
    if profile["unseen"]:
        text += f"; no sweep has seen {profile['unseen']} of these GPUs: gpu-aware doctor"
    if profile["faults"]:
        text += f"; {profile['faults']} faults in the newest probes"
    return text
