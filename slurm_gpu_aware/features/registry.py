"""The one list of features of a round: their stages, in the order in which a round takes them.

The order counts: all others see the turns of the queue, shards take nothing from moves, and power
is counted after both. This module loads all of the planner, so programs that plan nothing do not
import it.
"""

from __future__ import annotations

from slurm_gpu_aware.features.due_dates.stage import DueDates
from slurm_gpu_aware.features.moves.stage import Moves, Returns
from slurm_gpu_aware.features.power.stage import Limit, Sizing
from slurm_gpu_aware.features.queue_order.stage import QueueOrder
from slurm_gpu_aware.features.shards.stage import Sharing
from slurm_gpu_aware.planning.stages import Stage

FEATURES: tuple[Stage, ...] = (
    QueueOrder(),
    Sharing(),
    Returns(),
    Moves(),
    Limit(),
    DueDates(),
    Sizing(),
)
