"""Texts of ``explain``: Slurm's reasons, events of a job, and what was asked, chosen, and why."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_gpu_aware.cli.output import place_text
from slurm_gpu_aware.features import found, load_facts
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.page.blocks import Pairs, Table, Words
from slurm_gpu_aware.selector.backoff import HELD_BY
from slurm_gpu_aware.time_text import counted, duration, stamp

_WORDS = {
    "BeginTime": "its begin time has not come",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "a job that it depends on ended otherwise, so it never starts",
    "JobHeldUser": "its owner holds it; to let it go: scontrol release",
    "job requeued in held state": "it was requeued and held; to let it go: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "JobArrayTaskLimit": "its array runs as many tasks as its limit allows",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionConfig": "its partition does not allow what it asks for",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "ReservationDeleted": "its reservation was deleted",
    "Reservation": "its reservation has not begun",
    "BadConstraints": "no node has what it asks for",
}
_LIMIT = re.compile(r"(QOS|Assoc)[A-Za-z]*\Z")
Detail = Mapping[str, Any]
_MAX_ROWS = 12
_UNSET: tuple[object, ...] = (None, "", "None", [], {}, ())  # ``None`` is also a word of Slurm's.
_EPOCH_S = 1e9  # A value of a key ``..._s`` above this (2001) is a time, not a duration.
_RECORDS = ("AdminComment", "record")
"""Keys of the record of a parked job, which the selector reads."""
_IN_WORDS = frozenset(("class_from", "kept", "kept_for", "victims"))
"""Keys of an account, beside facts, that other lines tell in full: all but the first of an earlier
release."""


def held_words(reason: str) -> str:
    """``its begin time has not come (BeginTime)``; a text of the selector stays as it is."""
    if not reason.startswith(HELD_BY):
        return reason
    name, more, rest = reason.removeprefix(HELD_BY).partition(";")
    return slurm_words(name) + more + rest


def slurm_words(name: str) -> str:
    """The same of Slurm's own word for a reason."""
    name = name.replace("_", " ")
    words = _WORDS.get(name)
    if words is None and (match := _LIMIT.match(name)) is not None:
        whose = "QOS" if match[1] == "QOS" else "account"
        words = f"a limit of its {whose} is reached"
    return f"Slurm holds it: {name}" if words is None else f"{words} ({name})"


def event_text(kind: str, detail: Detail) -> str:
    """``started on n1: 0,1``; the kind alone where it has no more to tell."""
    text = _TEXTS.get(kind)
    try:
        return text(detail) if text is not None else kind.replace("_", " ")
    except (KeyError, TypeError, ValueError, AttributeError):  # of another release
        return kind.replace("_", " ")


def _parked(detail: Detail) -> str:
    if why := detail.get("why"):
        return f"waits again: {held_words(str(why))}"
    return "waits for the selector's choice"


def _prepared(detail: Detail) -> str:
    return f"given {detail['ReqNodeList']}" if detail.get("ReqNodeList") else "given its GPUs"


def _released(detail: Detail) -> str:
    if why := detail.get("left_to_slurm"):
        return f"left to Slurm: {why}"
    return "may start: Slurm has its place"


def _started(detail: Detail) -> str:
    gpus = detail.get("gpus") or {}
    where = "; ".join(f"{node}: {','.join(map(str, slots))}" for node, slots in gpus.items())
    where = where or ", ".join(detail.get("nodes", ()))
    text = f"started on {where}" if where else "started"
    if detail.get("without_us"):
        return f"{text}, placed by Slurm alone"
    return text if detail.get("as_planned", True) else f"{text}, not where it was placed"


def _ended(detail: Detail) -> str:
    state = detail.get("state")
    return "ended" if state in (None, "unknown") else f"ended: {state}"


def _changed(detail: Detail) -> str:
    if why := detail.get("refused"):
        return f"Slurm refused a change by its owner: {why}"
    return "changed by its owner"


_TEXTS: Mapping[str, Callable[[Detail], str]] = {
    "parked": _parked,
    "prepared": _prepared,
    "released": _released,
    "started": _started,
    "ended": _ended,
    "requeued": lambda _: "requeued",
    "opened_by_hand": lambda _: "released by hand: Slurm places it",
    "changed": _changed,
    "error": lambda detail: str(detail["why"]),
    **{kind: text for events in found("declared", "EVENTS") for kind, text in events.items()},
}


def asked_text(d: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Lines on the request."""
    asked: Mapping[str, Any] = d["asked"]
    shards, gpus, nodes = asked.get("shards"), asked.get("gpus", 0), asked.get("min_nodes", 1)
    words = f"{shards} shards of a GPU" if shards else counted(gpus, "GPU")
    if asked.get("gpus_range"):
        words = f"{asked['gpus_range']} GPUs"
    if not shards and nodes == asked.get("max_nodes"):
        words += " on one node" if nodes == 1 else f" on {nodes} nodes"
    parts = [words, "whole nodes" if asked.get("exclusive") else None]
    if limit := asked.get("time_limit_s"):
        parts.append(f"at most {duration(limit)}")
    if comment := asked.get("comment"):
        parts.append(f"comment {comment}")
    entries: list[tuple[str, object]] = [
        ("user", d["user"]),
        ("job name", asked.get("name")),
        ("asked", ", ".join(filter(None, parts))),
        ("submitted", stamp(d["submitted_at"])),
    ]
    return [(name, value) for name, value in entries if value not in _UNSET]


def decision_blocks(
    d: Mapping[str, Any], events: Sequence[Mapping[str, Any]], *, details: bool
) -> list[Words]:
    """All of a placement in words; ``details``: and the account of its policy."""
    why, lines = d["why"], facts_of(d["why"]).lines()
    if not d["nodes"]:
        turn = ("its turn came", stamp(d["decided_at"]))
        return [Pairs([*asked_text(d), turn, ("why", lines.get("why"))])]
    entries: list[tuple[str, object]] = [
        *asked_text(d),
        ("decided", f"{stamp(d['decided_at'])}, by policy {d['policy']}"),
        ("chosen", place_text(d) + ("" if d["exact"] else " (Slurm chooses the GPUs)")),
        ("class", _class_text(d["asked"], why)),
        ("slowdown", _slowdown_text(d)),
        *((k, of(d, events)) for own in found("text", "CHOSEN") for k, of in own.items()),
    ]
    return [Pairs([*entries, *lines.items()]), *(_account(d, why) if details else ())]


def facts_of(why: Mapping[str, Any]) -> Facts:
    """What policy, planner and features said of a placement, or of a wait."""
    load_facts()
    return Facts.read(why)


def _class_text(asked: Mapping[str, Any], why: Mapping[str, Any]) -> str:
    name, source = asked.get("class"), asked.get("class_from")
    told = str(why.get("class_from") or name)
    return f"{name}, the site's default" if source == "site" else told


def _slowdown_text(d: Mapping[str, Any]) -> str:
    """``7% longer than on median GPUs of one node, by its slowest GPU``."""
    score, slowdown = d["score"] or 1.0, d["slowdown"]
    if abs(slowdown - 1.0) < 0.0005:
        return "none predicted"
    causes = [_slowest(d)] if abs(score - 1.0) >= 0.0005 else []
    causes += ["the distance of its GPUs"] if abs(slowdown / score - 1.0) >= 0.0005 else []
    change = 100 * (slowdown - 1.0)
    than = f"{'longer' if change > 0 else 'shorter'} than on median GPUs of one node"
    most = "" if _known(d) else "at most "
    return f"{most}{abs(change):.3g}% {than} predicted, by {' and '.join(causes)}"


def _known(d: Mapping[str, Any]) -> bool:
    """Whether its GPUs are known; else Slurm chooses them on its nodes."""
    return bool(d["exact"] or d["asked"].get("exclusive"))


def _slowest(d: Mapping[str, Any]) -> str:
    return "its slowest GPU" if _known(d) else "the slowest GPU that Slurm may choose"


def _account(d: Mapping[str, Any], why: Mapping[str, Any]) -> list[Words]:
    """The policy's account of its choice, for administrators."""
    entries: list[tuple[str, object]] = [
        ("request", flat(d["asked"])),
        ("planned in", duration(d["took_ms"] / 1000)),
        ("L", f"{d['slowdown'] / (d['score'] or 1.0):.4g} (level {d['level']})"),
        ("V", f"{d['score']:.3f}, of {_slowest(d)}"),
    ]
    blocks: list[Words] = []
    in_words = _IN_WORDS.union(one.key for one in facts_of(why) if one.told)
    for name, value in why.items():
        if name in in_words:
            continue
        fields = value if isinstance(value, Mapping) else {name: value}
        tables = {key: rows for key, rows in fields.items() if _is_table(rows)}
        blocks += [_rows(key.replace("_", " ").capitalize(), rows) for key, rows in tables.items()]
        if rest := {key: one for key, one in fields.items() if key not in tables}:
            entries.append(
                (name.replace("_", " "), flat(rest) if rest != {name: value} else _short(value))
            )
    return [Pairs(entries, "Account of the policy"), *blocks]


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def flat(detail: Mapping[str, Any]) -> str:
    """``key=value`` pairs on one line, without unset values and records; times are formatted."""
    shown = {k: v for k, v in detail.items() if v not in _UNSET and k not in _RECORDS}
    return ", ".join(_pair(k, v) for k, v in shown.items())


def _pair(key: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value > _EPOCH_S and key.endswith("_s"):
        return f"{key.removesuffix('_s')}={stamp(float(value))}"
    return f"{key}={_short(value)}"


def _rows(title: str, records: Sequence[Mapping[str, Any]]) -> Table:
    """A table of records; keys become columns, long lists are cut."""
    headers = list(dict.fromkeys(key for record in records for key in record))
    right = [h for h in headers if all(isinstance(r.get(h), int | float | None) for r in records)]
    cells = [[_short(r.get(h)) for h in headers] for r in records[:_MAX_ROWS]]
    left_out = len(records) - _MAX_ROWS
    more = f"... and {left_out} more, with --json" if left_out > 0 else ""
    return Table(headers, cells, right, title, more)


def _short(value: Any) -> str:
    """One value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(
            f"[{_short(v)}]" if isinstance(v, list | tuple) else _short(v) for v in value
        )
    if isinstance(value, Mapping):
        return flat(value)
    return "" if value is None else str(value)
