"""``[moves]``: when running jobs may be requeued to better GPUs, and how many.

And what the request of a moved job says of that.
"""

from dataclasses import dataclass
from typing import Annotated

from slurm_gpu_aware.model.facets import Facet, Section
from slurm_gpu_aware.records import MOST, Seconds, whole

RATE_S = 3600.0  # Period of `MoveSettings.per_hour`.
LOOK_S = 30.0  # Pause between two looks for moves.

HAD_GPUS: Facet[int] = Facet("GPUs before its move", 0, int)
"""Of a request: the GPUs that the job had before the selector moved it; it gets no fewer. 0: it was
not moved."""

Count = Annotated[int, whole(1, MOST)]


@dataclass(frozen=True)
class MoveSettings:
    """When running jobs may move. Times in seconds."""

    sticky: bool = True
    """A job moves only for a gain above cost and margin; False: PAL's non-sticky mode."""
    shrink: bool = True
    """A job may give GPUs back, so that waiting jobs start; False: it only gets more."""
    margin_s: Seconds = 300.0  # Least time that a move must save beyond the cost of the restart.
    first_s: Seconds = 600.0  # A job is not moved so soon after its start.
    last_s: Seconds = 600.0  # A job is not moved so shortly before its expected end.
    again_s: Seconds = 3600.0  # A job is not moved again so soon after its last move.
    per_round: Count = 4  # Most moves that begin in one round.
    per_hour: Count = 12
    """Most moves of the whole site that begin within `RATE_S`; see `planning.move_rates`."""


@dataclass(frozen=True)
class MovesConfig(MoveSettings, Section):
    """``[moves]``: running jobs that allow it are requeued to better GPUs."""

    name = "moves"
    enabled: bool = False
    restart_s: Seconds = 60.0  # Time that a restart takes: checkpoint, requeue, start, restore.


SECTIONS = (MovesConfig,)
