"""Events of a job that tries several clocks for its performance model."""

from collections.abc import Callable, Mapping
from typing import Any

EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "exploring": lambda _: "tries several clocks for its performance model",
    "explored": lambda _: "has tried its clocks",
}


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """The sentence on the clocks that the job has tried, and the power there."""
    ended = [event["detail"] for event in answer["events"] if event["kind"] == "explored"]
    if not ended:
        return []
    watts = zip(ended[-1].get("mhz", ()), ended[-1].get("power_w", ()), strict=False)
    found = ", ".join(f"{power:.0f} W at {mhz} MHz" for mhz, power in watts)
    what = found or ended[-1].get("error") or "its nodes know no energy at each of them"
    return [f"It tried several clocks for its performance model: {what}."]
