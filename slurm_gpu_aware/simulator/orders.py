"""Orders of the queue, as priorities that the planner sorts by.

An order only says who comes first; who gets what is the planner's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob

__all__ = ["Progress", "order_key"]

_SLACK_GPU_S = 1e-3
"""A service that was added up in many steps reaches the threshold for all that rounding does."""


@dataclass(slots=True)
class Progress:
    """What an order may look at beside the job itself."""

    done_s: float = 0.0
    """Work done so far, in seconds at slowdown 1."""
    service_gpu_s: float = 0.0
    """Attained service: GPU seconds held."""


Key = Callable[[TraceJob, Progress], tuple[float, ...]]


def order_key(settings: SimSettings) -> Key:
    """A sort key, smallest first; submission breaks ties, then the job's number (``Rounds``).

    LAS has two queues (Gu et al., Tiresias, NSDI'19, section 3.2): below the threshold of attained
    service, then above; inside each by submission, so that jobs of like service do not take turns.
    """
    if settings.order == "las":
        limit = settings.las_threshold_gpu_s - _SLACK_GPU_S
        return lambda job, state: (float(state.service_gpu_s >= limit), job.submit_s)
    if settings.order == "srtf":
        return lambda job, state: (job.duration_s - state.done_s, job.submit_s)
    if settings.order == "priority":
        return lambda job, state: (-job.priority, job.submit_s)
    if settings.order == "edf":
        return lambda job, state: (
            math.inf if job.deadline_s is None else job.deadline_s,
            job.submit_s,
        )
    return lambda job, state: (job.submit_s,)
