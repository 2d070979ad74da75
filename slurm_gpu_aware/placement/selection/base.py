"""Base class of selections among the sets of a cell, and their result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu_aware.placement.cells import Cell

__all__ = ["MOST_CONSIDERED", "Choice", "Considered", "Selection"]

MOST_CONSIDERED = 5  # sets in an account


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs, and the candidates of the choice."""

    nodes: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    total: int
    """Sum of scores in units of 1e-5, to compare splits."""
    candidates: int
    """Number of candidate rows."""
    sets: int | None
    """Candidate sets; None: not counted."""
    ties: int
    """Candidates equal to the chosen one except for the index."""
    considered: tuple[Considered, ...] = ()
    """The best sets of the best nodes, the chosen set first; empty for several nodes."""
    cut: str | None = None
    """Words for the account on the part of the cell that was not compared; None: none."""


class Considered(NamedTuple):
    """A one-node set that was compared, for the account."""

    node: int
    slots: tuple[int, ...]
    value: float
    """Compared value: the mean score, or a bandwidth in GB/s."""


class Selection(ABC):
    """A way to compare sets, with one method for each shape (`shapes`)."""

    def choose(self, cell: Cell) -> Choice:
        """Return the best set of the cell. Raises ValueError if the cell holds none."""
        choice: Choice | None
        if cell.split.nodes == 1:
            choice = self.one_node(cell)
        elif cell.split.uneven:
            choice = self.uneven(cell)
        elif cell.split.same_slots:
            choice = self.same_indices(cell)
        else:
            choice = self.even(cell)
        if choice is None:
            raise ValueError("the cell holds no set: it is not feasible")
        return choice

    @abstractmethod
    def one_node(self, cell: Cell) -> Choice:
        """Return the best set of one row."""

    @abstractmethod
    def even(self, cell: Cell) -> Choice | None:
        """Return the best rows of one group, with the same count of GPUs each."""

    @abstractmethod
    def same_indices(self, cell: Cell) -> Choice | None:
        """Return the best rows of one group, with the same slots each."""

    @abstractmethod
    def uneven(self, cell: Cell) -> Choice | None:
        """Return the best GPUs of one group, with any count of each row."""
