"""Fair shares in a simulation: usage of users over time, and the priorities of waiting jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.slurm.multifactor import (
    Multifactor,
    fair_tree,
    later_usage,
    priorities,
    summed,
)

if TYPE_CHECKING:
    from slurm_gpu_aware.simulator.active import ActiveJob

_UNNAMED = "(none)"
"""Account or user of a job that has none."""


class FairShares:
    """Usage of a run and the priorities that follow from it; renewed each calculation period."""

    def __init__(self, site: Multifactor, jobs: Sequence[TraceJob], cluster: Cluster) -> None:
        self.site = site
        of_jobs = [(job.account or _UNNAMED, job.user or _UNNAMED) for job in jobs]
        self.tree = site.associations.with_users(sorted(set(of_jobs)))
        self._place = np.array([self.tree.places[name] for name in of_jobs], dtype=np.int64)
        self._nodes, self._gpus = len(cluster.nodes), int(cluster.exists.sum())
        self._usage, self._held, self._new = np.zeros((3, len(self.tree.names)))
        self._factor = fair_tree(self.tree, self._usage)
        self._at_s = self._renewed_s = jobs[0].submit_s if jobs else 0.0

    def change(self, position: int, gpus: int, now: float) -> None:
        """A job gets GPUs, or gives up ``-gpus``."""
        self._until(now)
        self._held[self._place[position]] += gpus

    def ranked(self, queue: Sequence[ActiveJob], now: float) -> list[Request]:
        """The requests with their priorities."""
        self._until(now)
        positions = [active.position for active in queue]
        asked = [(a.request.submit_s, a.request.min_nodes, a.size, a.job.priority) for a in queue]
        submit_s, nodes, gpus, more = np.array(asked, dtype=np.float64).reshape(-1, 4).T
        factor = self._factor[self._place[positions]]
        shares = nodes / self._nodes, gpus / self._gpus
        found = priorities(self.site, now - submit_s, factor, *shares, more)
        pairs = zip(queue, found.tolist(), strict=True)
        return [replace(active.request, priority=value) for active, value in pairs]

    def _until(self, now: float) -> None:
        """Add what is in use until ``now``, and renew the factors at the end of a period."""
        period = self.site.calc_period_s
        passed = int((now - self._renewed_s) // period)
        if passed > 0:
            end_s = self._renewed_s + period
            self._new += self._held * (end_s - self._at_s)
            self._usage = later_usage(self.site, self._usage, self._new / period, 1)
            self._usage = later_usage(self.site, self._usage, self._held, passed - 1)
            self._factor = fair_tree(self.tree, summed(self.tree, self._usage))
            self._new[:] = 0.0
            self._renewed_s += passed * period
            self._at_s = self._renewed_s
        self._new += self._held * (now - self._at_s)
        self._at_s = now
