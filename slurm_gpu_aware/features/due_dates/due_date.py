"""Due date of a job, as its request holds it, and what is known of its work."""

import math
from dataclasses import dataclass

from slurm_gpu_aware.model.facets import Facet


@dataclass(frozen=True)
class DueDate:
    """When a job should end. It bounds nothing: a job that is late runs on."""

    due_s: float
    """Time on a round's clock."""
    runs: tuple[tuple[int, float], ...] = ()
    """(GPUs, run time on median GPUs without any slowdown) of earlier runs of the same user and job
    name. Units: s; inf: its time limit ended the run."""
    nodes: tuple[str, ...] = ()
    """Of each run the first node, which tells its GPU model; empty: not known."""
    limit_s: float = math.inf
    """Most time of its work on its least GPUs, if that is less than its time limit."""
    epochs: tuple[int, int, float] | None = None
    """(most epochs, GPUs, time of an epoch on so many median GPUs); None: not known."""
    done: float = 0.0
    """Work of the job before its last start, in the unit of `sizing.due_plan.work_rates`."""
    weight: float = 1.0
    """Of its pressure; see `pressing`."""
    restart_s: float | None = None
    """What a restart with more GPUs costs; None: the job is not moved."""

    @property
    def known_gpus(self) -> tuple[int, ...]:
        """GPU counts of which a time is known, ascending."""
        counts = {gpus for gpus, _ in self.runs}
        return tuple(sorted(counts if self.epochs is None else {*counts, self.epochs[1]}))


def pressing(pressure_s: float, weight: float) -> float:
    """A pressure times its weight: so many times the lateness, or one part in so many of the time
    to spare, which is a negative pressure."""
    return pressure_s * weight if pressure_s > 0 else pressure_s / weight


DUE_DATE: Facet[DueDate | None] = Facet("due date", None, DueDate)
"""Of a request; None: the job has no due date."""
