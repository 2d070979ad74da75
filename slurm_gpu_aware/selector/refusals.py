"""Refusals: changes that would let parked jobs start, and that Slurm refuses."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

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
    who: set[str] = field(default_factory=set)
    """The users of these jobs."""
    through: bool = True
    """A job got through since the gate was last opened, or it never was."""

    @property
    def too_many(self) -> bool:
        """Whether the gate must open."""
        return self.count >= MOST

    def refused(self, job_id: str, why: str, user: str) -> None:
        """Count a refusal."""
        if why not in self.ended():
            self.count += 1
            self.who.add(user)
            self.why = f"job {job_id}: {why}"

    def accepted(self) -> None:
        """Forget the refusals: a job got through."""
        self.forget()
        self.through = True

    def forget(self) -> None:
        """Begin a new row."""
        self.count = 0
        self.who.clear()

    def try_again(self) -> None:
        """Note that the gate closes: until a job gets through, the first refusal opens it again."""
        self.count = 0 if self.through else MOST - 1
