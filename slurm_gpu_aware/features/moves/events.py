"""Events of a job that is moved."""

from collections.abc import Callable, Mapping
from typing import Any

from slurm_gpu_aware.features.moves.facts import Moved
from slurm_gpu_aware.model.facts import Summary
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.time_text import duration


def _move_words(why: Mapping[str, Any]) -> str:
    """``moved from ...``."""
    return Summary.said(why.get("summary")) or Moved.said(why.get("moved")) or "moved"


EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "move_begun": lambda detail: f"is being {_move_words(detail['why'])}",
    "moved": lambda detail: (
        f"runs again on {', '.join(detail['nodes'])}, {duration(detail['after_s'])} later"
    ),
}


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """The sentence on a move that is under way, or that Slurm refused."""
    moves = [
        e for e in answer["events"] if e["kind"] in EVENTS or e["detail"].get("step") == "move"
    ]
    over = answer["state"] in (JobPhase.ENDED, "unknown")
    if over or not moves or moves[-1]["kind"] == "moved":
        return []
    detail = moves[-1]["detail"]
    if moves[-1]["kind"] == "error":
        return [f"It is not moved: {detail['why']}."]
    return [f"It is being {_move_words(detail['why'])}."]
