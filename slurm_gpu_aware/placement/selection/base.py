"""Selection among the sets of a cell: what every policy's way to compare them has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu_aware.placement.cells import Cell

__all__ = ["MOST_CONSIDERED", "Choice", "Considered", "Selection"]

MOST_CONSIDERED = 5  # sets that an account lists; their number is always given


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs and how contested the choice was."""

    nodes: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    total: int
    """Sum of scores in units of 1e-5, for comparing splits."""
    candidates: int
    """Nodes (rows) that could take part."""
    sets: int | None
    """Candidate sets; None: not counted."""
    ties: int
    """Candidates as good by score and best fit; the lowest index decided among them."""
    considered: tuple[Considered, ...] = ()
    """The best sets of the best few nodes, the chosen one first; empty for several nodes."""
    cut: str | None = None
    """What of the cell was not compared, in words for the account; None: nothing."""


class Considered(NamedTuple):
    """A one-node set that was compared with others, for the account."""

    node: int
    slots: tuple[int, ...]
    value: float
    """What it was compared by: the mean score, or a bandwidth in GB/s."""


class Selection(ABC):
    """How sets are compared: one method for each shape (`shapes`)."""

    def choose(self, cell: Cell) -> Choice:
        """Return the best set of the cell. Raise ValueError if it holds none."""
        found: Choice | None
        if cell.split.nodes == 1:
            found = self.one_node(cell)
        elif cell.split.uneven:
            found = self.uneven(cell)
        elif cell.split.same_slots:
            found = self.same_indices(cell)
        else:
            found = self.even(cell)
        if found is None:
            raise ValueError("the cell holds no set: it was not found feasible")
        return found

    @abstractmethod
    def one_node(self, cell: Cell) -> Choice:
        """Return the best set out of one row."""

    @abstractmethod
    def even(self, cell: Cell) -> Choice | None:
        """Return the best rows of one group, the same count of GPUs of each."""

    @abstractmethod
    def same_indices(self, cell: Cell) -> Choice | None:
        """Return the best rows of one group and the same slots of each, chosen together."""

    @abstractmethod
    def uneven(self, cell: Cell) -> Choice | None:
        """Return the best GPUs of one group, as many of each row as it takes."""
