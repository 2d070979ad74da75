"""How fast a job really runs where it was put."""

from __future__ import annotations

import numpy as np

from slurm_gpu_aware.assignment import Assignment
from slurm_gpu_aware.cluster import Cluster
from slurm_gpu_aware.placement.evaluate import predicted_slowdown
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob

__all__ = ["Physics"]


class Physics:
    """Slowdown of a job on a set of GPUs: L x max V (PAL, eq. 1), each part switchable.

    ``cluster`` carries the true per-GPU scores, not the planner's bins.
    """

    def __init__(self, cluster: Cluster, settings: SimSettings) -> None:
        self.cluster = cluster
        self.settings = settings

    def slowdown(self, job: TraceJob, placed: Assignment) -> float:
        """t_iter / t_orig >= 0 of ``job`` on the GPUs of ``placed``."""
        score, _, both = predicted_slowdown(self.cluster, job.app_class, placed.nodes, placed.slots)
        locality = both / score
        factor = 1.0
        if self.settings.variability:
            factor *= score
        if self.settings.locality:
            factor *= locality
        return float(np.float64(factor))
