"""Events of a job whose clock is checked against its default clock."""

from collections.abc import Callable, Mapping
from typing import Any

CHECKING, CHECKED, FITTED = "clock_checking", "clock_checked", "model_fitted"
"""The check has begun; what it found; its model was fitted to that, or why not."""
EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    CHECKING: lambda _: "runs at its default clock for some iterations, to compare",
    CHECKED: lambda detail: (
        "gets its default clock back" if detail.get("slow") else "was compared with its default"
    ),
    FITTED: lambda detail: (
        "its model was not fitted anew" if detail.get("error") else "its model was fitted anew"
    ),
}


def setting_words(clock_mhz: int, limit_w: int | None) -> str:
    """``1110 MHz``, or ``1410 MHz and 250 W``."""
    return f"{clock_mhz} MHz" + (f" and {limit_w} W" if limit_w else "")


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """The sentences on what the clock of the job costs, by its own iterations."""
    ended = [event for event in answer["events"] if event["kind"] == CHECKED]
    if not ended:
        return []
    last = ended[-1]["detail"]
    if "slower" not in last:
        return [f"Its clock was not checked: {last.get('error')}."]
    saves = "" if last.get("saves") is None else f", with {last['saves']:.0%} less energy"
    setting = setting_words(last["clock_mhz"], last.get("limit_w"))
    found = f"At {setting} it is {last['slower']:.1%} slower by its own marks{saves}"
    if not last["slow"]:
        return [f"{found}."]
    found = f"{found}: more than the {last['allowed']:.0%} allowed, so its default clock is back."
    # A fit that began before is that of an earlier run of the job.
    fits = [event["detail"] for event in answer["events"] if event["kind"] == FITTED]
    fits = [fit for fit in fits if fit.get("began", 0.0) >= ended[-1]["at"]]
    return [found, *map(_fitted, fits[-1:])]


def _fitted(fit: Mapping[str, Any]) -> str:
    if "says" in fit:
        return f"Model {fit['model']} was fitted anew to that: {fit['says']}."
    return f"Its model was not fitted anew: {fit.get('error')}."
