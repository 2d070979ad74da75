"""Texts of ``gpu-aware explain``: state, placement and events of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu_aware.cli.output import pairs, paragraph, table
from slurm_gpu_aware.model.job_phase import OPEN_DECISION
from slurm_gpu_aware.time_text import age, stamp

__all__ = ["explain_text", "place_text"]

_NO_REASON = (None, "", "None")
"""The last one is Slurm's word."""
_MAX_ROWS = 12
_UNSET: tuple[object, ...] = (*_NO_REASON, [], {}, ())
_EPOCH_S = 1e9
"""A value of a key ``..._s`` above this (2001) is a time, not a duration."""


def place_text(nodes: Sequence[str], slots: Sequence[Sequence[int]], exact: bool = True) -> str:
    """``n1: 0,1; n2: 0,1``; only the node names if Slurm picks the GPUs."""
    if not exact:
        return ", ".join(nodes)
    return "; ".join(
        f"{node}: {','.join(str(s) for s in chosen)}"
        for node, chosen in zip(nodes, slots, strict=True)
    )


def explain_text(answer: Mapping[str, Any]) -> str:
    """The text on a job; ``answer``: its JSON, and ``away``."""
    job_id, state = answer["job_id"], answer["state"]
    over = state in OPEN_DECISION and answer["slurm"] is not None and answer["slurm"]["ended"]
    blocks = [f"Job {job_id}: {'ended' if over else state}"]
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
    elif not answer["decisions"] and any("without_us" in e["detail"] for e in answer["events"]):
        blocks.append(_alone(answer["events"]))
    if state in OPEN_DECISION and answer["slurm"] is not None:
        blocks += _unrecorded(answer)
    if state == "parked":
        blocks.append(_parked_text(answer))
    decisions = answer["decisions"]
    if decisions and state in ("parked", "left to Slurm"):
        # The last placement is void; the request is still valid.
        blocks.append(pairs(_asked(decisions[-1])))
        blocks.append(_earlier_text(decisions))
    elif decisions:
        blocks.append(_decision_text(decisions[-1]))
        if len(decisions) > 1:
            blocks.append(_earlier_text(decisions[:-1]))
    if answer["events"]:
        events = [(stamp(e["at"]), e["kind"], _flat(e["detail"])) for e in answer["events"]]
        blocks.append("Events\n" + table(["time", "event", "detail"], events))
    return "\n\n".join(blocks)


def _tasks_text(tasks: Sequence[str]) -> str:
    shown = ", ".join(tasks[:_MAX_ROWS]) + (", ..." if len(tasks) > _MAX_ROWS else "")
    return paragraph(f"A job array; each task was placed separately: {shown}. Explain one of them.")


def _not_ours(slurm: Mapping[str, Any]) -> str:
    return paragraph(
        f"The selector does not place this job; Slurm places it ({_in_slurm(slurm)}). So are jobs"
        " without GPUs, jobs with place=off, and unsupported request forms (direct srun --gpus,"
        " heterogeneous and scrontab jobs)."
    )


def _in_slurm(slurm: Mapping[str, Any]) -> str:
    reason = slurm["reason"]
    return f"state {slurm['state']}" + (f", reason {reason}" if reason not in _NO_REASON else "")


def _placed(slurm: Mapping[str, Any]) -> str:
    return paragraph(
        f"It was placed at {stamp(slurm['placed_at'])} (state {slurm['state']}); the published copy"
        " of the ledger does not have the placement yet. Try again in a moment."
    )


def _left_to_slurm(slurm: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    reasons = [e["detail"].get("left_to_slurm") for e in events if e["kind"] == "released"]
    why = (reasons[-1] if reasons else None) or slurm.get("why")
    return paragraph(
        f"It was parked; now its gate is open, and Slurm places it ({_in_slurm(slurm)}): "
        f"{why or 'it was released by hand, it was cancelled, or the selector was away'}."
    )


def _unrecorded(answer: Mapping[str, Any]) -> list[str]:
    """The state of a placed job in Slurm, if it is newer than the ledger."""
    state, away = answer["slurm"]["state"], answer["selector_away"]
    if state is None:
        text = "Slurm no longer lists this job: it has ended"
    elif answer["slurm"]["ended"]:
        text = f"Its state in Slurm is {state}: it has ended"
    elif away and (state == "PENDING") == (answer["state"] == "started"):
        text = f"Its state in Slurm is {state}"
    else:
        return []
    because = ""
    if away:
        quiet = away["quiet_s"]
        since = "a while" if quiet is None else age(quiet)
        because = f", because it has not answered for {since}"
    return [paragraph(f"{text}. The selector has not recorded that{because}.")]


def _alone(events: Sequence[Mapping[str, Any]]) -> str:
    """Text on a job that was parked and ran without a decision of the selector."""
    reasons = [e["detail"]["left_to_slurm"] for e in events if "left_to_slurm" in e["detail"]]
    if reasons:
        why = f"it was left to Slurm: {reasons[-1]}"
    elif any(e["kind"] == "opened_by_hand" for e in events):
        why = "it was released by hand"
    else:
        why = "the gate had opened by itself, because the selector was away"
    return paragraph(f"Slurm placed it: {why}.")


def _parked_text(answer: Mapping[str, Any]) -> str:
    waiting, away = answer["waiting"], answer.get("away")
    if answer["slurm"] is not None and answer["slurm"]["state"] is None:
        return paragraph(
            "It was parked in the selector's last round. Slurm no longer lists it: it was"
            " cancelled, or it has run, while the selector was away."
        )
    if waiting is None:
        slurm = answer["slurm"] or {}
        reason = slurm.get("reason")
        newest = answer["decisions"][-1] if answer["decisions"] else {}
        outcome = newest.get("outcome") or {}
        if newest.get("state") == "waiting" and outcome.get("step") == "prepare":
            why = outcome.get("why") or "no reason was recorded"
            text = f"It could not be placed: {why}."
            return paragraph(f"{text} {away or 'The next round tries again.'}")
        if reason and reason not in ("Licenses", "Priority", "Resources", "None"):
            text = f"Slurm itself holds it: {reason}."
            return paragraph(f"{text} {away or 'It is planned once that ends.'}")
        return paragraph(str(away or "It waits for the selector's next round."))
    lines = [paragraph(f"Why it waits: {waiting.get('reason') or 'no reason was recorded'}")]
    shadow = waiting.get("shadow_start_s")
    if shadow and not away:
        lines.append(
            paragraph(
                f"GPUs are reserved for it: it starts by {stamp(float(shadow))} at the latest."
            )
        )
    lines.append(f"As of the round at {stamp(answer['waiting_as_of'])}.")
    if away:
        lines.append(paragraph(str(away)))
    return "\n".join(lines)


def _asked(d: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [
        ("user", d["user"]),
        ("asked", _flat(d["asked"])),
        ("submitted", stamp(d["submitted_at"])),
    ]


def _decision_text(d: Mapping[str, Any]) -> str:
    where = place_text(d["nodes"], d["slots"], d["exact"])
    why = {name: value for name, value in d["why"].items() if name != "penalty_from"}
    entries: list[tuple[str, object]] = [
        *_asked(d),
        ("decided", f"{stamp(d['decided_at'])}, took {age(d['took_ms'] / 1000)}"),
        ("policy", d["policy"]),
        ("chosen", where + ("" if d["exact"] else " (Slurm picks the GPUs)")),
        ("slowdown", f"{d['slowdown']:.3f} predicted"),
        ("locality", _locality(d)),
        ("score", f"V {d['score']:.3f}, of the slowest GPU"),
        ("clock", f"{d['clock_mhz']} MHz" if d["clock_mhz"] else "default"),
    ]
    if d["victims"]:
        some = why.pop("preempts_of_these", None)
        among = f"{some} of these, Slurm chooses: " if some else ""
        entries.append(("preempts", among + ", ".join(d["victims"])))
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


def _locality(d: Mapping[str, Any]) -> str:
    """``L 1.5 (level cluster, measured)``."""
    source = d["why"].get("penalty_from")
    words = f"level {d['level']}" + (f", {source}" if source else "")
    return f"L {d['slowdown'] / d['score']:.4g} ({words})" if d["score"] else words


def _earlier_text(decisions: Sequence[Mapping[str, Any]]) -> str:
    past = [
        (
            stamp(d["decided_at"]),
            place_text(d["nodes"], d["slots"], d["exact"]),
            f"{d['slowdown']:.3f}",
            d["state"],
        )
        for d in decisions
    ]
    headers = ["time", "place", "slowdown", "became"]
    return "Earlier placements\n" + table(headers, past, right=["slowdown"])


def _flat(detail: Mapping[str, Any]) -> str:
    """``key=value`` pairs on one line, without unset values; times are formatted."""
    return ", ".join(_pair(k, v) for k, v in detail.items() if v not in _UNSET)


def _pair(key: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value > _EPOCH_S and key.endswith("_s"):
        return f"{key.removesuffix('_s')}={stamp(float(value))}"
    return f"{key}={_short(value)}"


def _rows(records: Sequence[Mapping[str, Any]]) -> str:
    """A table of records; keys become columns, long lists are cut."""
    headers: list[str] = []
    for record in records:
        headers += [k for k in record if k not in headers]
    right = [h for h in headers if all(isinstance(r.get(h), int | float | None) for r in records)]
    cells = [[_short(r.get(h)) for h in headers] for r in records[:_MAX_ROWS]]
    text = table(headers, cells, right=right)
    more = len(records) - _MAX_ROWS
    return text + (f"\n... and {more} more, with --json" if more > 0 else "")


def _short(value: Any) -> str:
    """One value."""
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
