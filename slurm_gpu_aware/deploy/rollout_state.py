"""State file and report of a rollout."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slurm_gpu_aware.deploy.files import Change, write
from slurm_gpu_aware.names import is_node_name

__all__ = ["Outcome", "RolloutState", "StateFile", "Summary"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one node."""

    node: str
    result: str
    """``changed``, ``already``, ``skipped``, ``failed`` (moved back) or ``left`` (interrupted)."""
    why: str
    waited_s: float
    """Wait until it was empty."""


@dataclass
class Summary:
    """Outcome of a run."""

    direction: str
    """``rollout`` or ``undo``."""
    nodes: list[Outcome] = field(default_factory=list)
    untyped_jobs: list[str] = field(default_factory=list)
    """Pending jobs that now ask for a feature instead of a type."""
    features_needed_by: list[str] = field(default_factory=list)
    """Jobs that still ask for the nodes' features after an undo; the features stay."""
    interrupted: bool = False

    def count(self, result: str) -> int:
        """Nodes with this result."""
        return sum(o.result == result for o in self.nodes)


@dataclass(frozen=True)
class RolloutState:
    """An unfinished run."""

    direction: str
    """``rollout`` or ``undo``."""
    scope: tuple[str, ...]
    """Nodes."""
    in_hand: str | None
    """The node that was drained last."""


class StateFile:
    """A small JSON file, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> RolloutState | None:
        """The unfinished run; None: there is none, or the file is invalid."""
        try:
            raw = json.loads(self.path.read_text(encoding="utf-8"))
            state = RolloutState(raw["direction"], tuple(raw["scope"]), raw["in_hand"])
            names = [*state.scope, *([] if state.in_hand is None else [state.in_hand])]
            valid = state.direction in ("rollout", "undo") and all(map(is_node_name, names))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return state if valid else None

    def save(self, state: RolloutState) -> None:
        """Replace the file. Raises SourceError."""
        write(Change(self.path, json.dumps(asdict(state))), backup=False)

    def clear(self) -> None:
        """Delete the file at the end of a run."""
        self.path.unlink(missing_ok=True)
