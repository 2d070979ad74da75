"""Result of a rollout: what became of nodes and of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    stranded_jobs: dict[str, str] = field(default_factory=dict)
    """Pending jobs that ask for a GPU type that no node has any more -> why they keep it."""
    typed_jobs: list[str] = field(default_factory=list)
    """Pending jobs that after an undo ask for a type again instead of a feature."""
    features_needed_by: dict[str, str] = field(default_factory=dict)
    """Jobs that still ask for the nodes' features after an undo -> why; the features stay."""
    interrupted: bool = False

    def count(self, result: str) -> int:
        """Nodes with this result."""
        return sum(o.result == result for o in self.nodes)
