"""Events of a job in words, for ``explain``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slurm_gpu_aware.cli.slurm_reasons import held_words
from slurm_gpu_aware.clocks.job import SHARED
from slurm_gpu_aware.features import found
from slurm_gpu_aware.time_text import duration

Detail = Mapping[str, Any]


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
    where = "; ".join(f"{node}: {_numbers(slots)}" for node, slots in gpus.items())
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


def _clock_set(detail: Detail) -> str:
    clock = f"{detail['mhz']} MHz" if detail.get("mhz") else "the default clock"
    asked = detail.get("asked_mhz")
    beside = f" (nearest to {asked} MHz)" if asked and asked != detail.get("mhz") else ""
    limit_w = detail.get("limit_w")
    limit = f", {limit_w} W at most each" if limit_w else ""
    return f"{_gpus(detail)} at {clock}{beside}{limit}"


def _clock_failed(detail: Detail) -> str:
    why = str(detail.get("error") or "no reason was recorded")
    if why == SHARED:
        return f"{_gpus(detail)}: {why}"
    what = "its clock is not reset" if detail.get("during") == "reset" else "no clock is set"
    return f"{_gpus(detail)}: {what}: {why}"


def _energy(detail: Detail) -> str:
    joules = detail.get("energy_j")
    if joules is None:
        return f"{_gpus(detail)}: energy not known: {detail.get('error') or 'no reason'}"
    return f"{_gpus(detail)} took {joules / 3600:.3g} Wh in {duration(detail.get('seconds'))}"


def _gpus(detail: Detail) -> str:
    """``n1: 0,1``."""
    numbers = _numbers(detail.get("gpus") or ())
    node = str(detail.get("node") or "its node")
    return f"{node}: {numbers}" if numbers else node


def _numbers(slots: Any) -> str:
    return ",".join(map(str, slots))


_TEXTS: Mapping[str, Callable[[Detail], str]] = {
    "parked": _parked,
    "prepared": _prepared,
    "released": _released,
    "started": _started,
    "ended": _ended,
    "requeued": lambda _: "requeued",
    "opened_by_hand": lambda _: "released by hand: Slurm places it",
    "changed": _changed,
    "clock_set": _clock_set,
    "clock_failed": _clock_failed,
    "energy": _energy,
    "error": lambda detail: str(detail["why"]),
    **{kind: text for events in found("events", "EVENTS") for kind, text in events.items()},
}
