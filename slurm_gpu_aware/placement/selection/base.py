"""Base class of selections among the sets of a cell, and their result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu_aware.placement.cells import Cell

MOST_CONSIDERED = 5  # sets in an account


class Considered(NamedTuple):
    """A one-node set that was compared, for the account."""

    node: int
    slots: tuple[int, ...]
    value: float
    """Compared value: the mean score, or a bandwidth in GB/s."""


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs, and the candidates of the choice."""

    nodes: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    sets: int | None
    """Candidate sets; None: not counted."""
    ties: int
    """Candidates equal to the chosen one except for the index."""
    considered: tuple[Considered, ...] = ()
    """The best sets of the best nodes, the chosen set first; empty for several nodes."""
    cut: str | None = None
    """Words for the account on the part of the cell that was not compared; None: none."""


class Selection(ABC):
    """A way to compare sets, with one method for each shape (`shapes`)."""

    def choose(self, cell: Cell) -> Choice:
        """Return the best set of the cell, which holds one."""
        if cell.split.nodes == 1:
            return self.one_node(cell)
        if cell.split.uneven:
            return self.uneven(cell)
        return self.same_indices(cell) if cell.split.same_slots else self.even(cell)

    @abstractmethod
    def one_node(self, cell: Cell) -> Choice:
        """Return the best set of one row."""

    @abstractmethod
    def even(self, cell: Cell) -> Choice:
        """Return the best rows of one group, with the same count of GPUs each."""

    @abstractmethod
    def same_indices(self, cell: Cell) -> Choice:
        """Return the best rows of one group, with the same slots each."""

    @abstractmethod
    def uneven(self, cell: Cell) -> Choice:
        """Return the best GPUs of one group, with any count of each row."""
