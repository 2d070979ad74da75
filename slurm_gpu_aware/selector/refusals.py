"""Refusals: changes that would let parked jobs start, and that Slurm refuses."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

MOST = 5
"""Refusals in a row after which the gate opens."""


@dataclass
class Refusals:
    """The refusals since a parked job last got through."""

    ended: Callable[[], Set[str]] = frozenset
    """Slurm's sentences for jobs that have ended: they are no refusals."""
    count: int = 0
    why: str = ""
    """Of the last one: job and Slurm's sentence."""
    through: bool = True
    """A job got through since the gate was last opened, or it never was."""

    @property
    def too_many(self) -> bool:
        """Whether the gate must open."""
        return self.count >= MOST

    def refused(self, job_id: str, why: str) -> None:
        """Count a refusal."""
        if why not in self.ended():
            self.count += 1
            self.why = f"job {job_id}: {why}"

    def accepted(self) -> None:
        """Forget the refusals: a job got through."""
        self.count, self.through = 0, True

    def try_again(self) -> None:
        """Note that the gate closes: until a job gets through, the first refusal opens it again."""
        self.count = 0 if self.through else MOST - 1
