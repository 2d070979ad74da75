"""Running jobs that allow moves, their moves, and the times at which they may move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.features.due_dates.account import DueAccount
from slurm_gpu_aware.features.moves.settings import MoveSettings
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.facets import Facet


@dataclass(frozen=True, eq=False)
class Movable:
    """A running job that allows moves."""

    request: Request
    """Its request, as if it waited."""
    job: RunningJob
    """Its GPUs, start and end."""
    restart_s: float = 60.0
    """Time that a restart costs: checkpoint, requeue, start, restore."""
    moved_s: float | None = None
    """Time of its last move; None: never."""
    account: DueAccount | None = None
    """Of its due date, on its present GPUs; None: it has none."""


@dataclass(frozen=True)
class Move:
    """A running job and the GPUs to which it goes."""

    of: Movable
    request: Request
    """Its request with the number of its new GPUs, and the power that it needs there at least."""
    assignment: Assignment
    """The new GPUs; ``why`` has the account of the move."""
    slowdown: float
    """Predicted slowdown on the present GPUs."""
    remaining_s: float
    """Expected time to its end without the move."""
    saves_s: float
    """Time that the move is expected to save, the restart counted."""
    others_s: float = 0.0
    """Sum of the times by which ``starts`` are expected to end sooner."""
    starts: tuple[str, ...] = ()
    """Waiting jobs that start on GPUs that the job gives back by shrinking."""
    due: bool = False
    """The job grows to meet its due date."""
    power_w: float = 0.0
    """Power above that of idle GPUs that is kept for it until it runs again: the larger one of its
    present power and of that of its restart. 0 if there is no power limit."""

    @property
    def job_id(self) -> str:
        """Slurm's job ID."""
        return self.assignment.job_id

    @property
    def gain_s(self) -> float:
        """Time that the move is expected to save all jobs together."""
        return self.saves_s + self.others_s

    @property
    def grows(self) -> bool:
        """Whether it gets more GPUs than it has."""
        return self.request.gpus > self.of.request.gpus


@dataclass(frozen=True)
class Moving:
    """What a round that looks for moves knows of them."""

    settings: MoveSettings
    movable: Sequence[Movable] = ()
    """All running jobs that allow moves."""
    recent: Sequence[tuple[float, str]] = ()
    """(time, user) of moves of the site that began."""
    busy: frozenset[int] = frozenset()
    """Nodes of moves that have not finished."""


RETURNING: Facet[Mapping[str, Assignment]] = Facet("returning", {}, dict[str, Assignment])
"""Of a round: job of the queue that is on a move -> the GPUs that were chosen for it."""
MOVING: Facet[Moving | None] = Facet("moving", None, Moving)
"""Of a round; None: it looks for no moves."""
MOVES: Facet[tuple[Move, ...]] = Facet("moves", ())
"""Of a plan: running jobs that begin to move, before the starts."""


def may_move(candidate: Movable, remaining_s: float, moves: MoveSettings, now: float) -> bool:
    """Say whether the times of a job allow that it moves now.

    ``remaining_s``: expected time to its end on its present GPUs; inf: not known.
    """
    since_s = math.inf if candidate.moved_s is None else now - candidate.moved_s
    return (
        now - candidate.job.start_s >= moves.first_s
        and moves.last_s <= remaining_s < math.inf
        and since_s >= moves.again_s
        and bool(candidate.job.gpus)
    )
