"""Interference of jobs on one machine (Amaral et al., SC'17, eq. 4).

Eq. 4 is a mean of solo / co-located time, which falls with interference, but eqs. 1 and 2 treat I
as a cost. Here every quotient is inverted: co-located / solo, at least 1. I = 1 means no
interference; larger is worse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.placement.identity_cache import by_identity

__all__ = ["InterferenceProfile", "Workload", "interference"]

Workload = tuple[str, int]
"""(application, GPUs) of a job."""


@dataclass(frozen=True, eq=False)
class InterferenceProfile:
    """Measured run times of applications alone and in pairs. Units: s, for any fixed work."""

    solo: Mapping[Workload, float]
    """Run time alone on the machine."""
    together: Mapping[tuple[Workload, Workload], float] = field(default_factory=dict)
    """(job, neighbour) -> run time of the job beside the neighbour; absent: not measured."""

    def __post_init__(self) -> None:
        for what, seconds in (*self.solo.items(), *self.together.items()):
            if not seconds > 0 or seconds == float("inf"):
                raise ValueError(f"run time of {what} must be positive, not {seconds}")

    def slowdown(self, job: Workload, neighbour: Workload) -> float | None:
        """Co-located / solo time of ``job``, at least 1 (less is noise); None: not measured."""
        solo, beside = self.solo.get(job), self.together.get((job, neighbour))
        return None if solo is None or beside is None else max(1.0, beside / solo)

    @cached_property
    def worst(self) -> float:
        """I_w: the largest measured slowdown; 1.0 if there is none."""
        known = (self.slowdown(job, neighbour) for job, neighbour in self.together)
        return max((ratio for ratio in known if ratio is not None), default=1.0)

    def __repr__(self) -> str:
        text = repr((sorted(self.solo.items()), sorted(self.together.items())))
        digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return f"InterferenceProfile({len(self.together)} pairs, {digest})"


def interference(profile: InterferenceProfile, job: Workload, cluster: Cluster) -> FloatArray:
    """I of each machine if ``job`` joined the jobs that run there, shape (N,), >= 1.

    The mean of co-located / solo time over those jobs and the new one, whose slowdowns by its
    neighbours add up. A pair that was not measured, or an unknown application, counts as none.
    """
    n = cluster.shape[0]
    holders = _holders(cluster.running)
    held = ~cluster.free[holders.node, holders.slot]
    code = holders.job[held] * n + holders.node[held]  # ascending
    code = code[np.flatnonzero(np.diff(code, prepend=-1))]
    node, workload = code % n, holders.workload[code // n]
    suffered = np.array([profile.slowdown(w, job) or 1.0 for w in holders.known] + [1.0])
    caused = np.array([profile.slowdown(job, w) or 1.0 for w in holders.known] + [1.0])
    jobs = np.bincount(node, minlength=n)
    others = np.bincount(node, weights=suffered[workload], minlength=n)
    own = 1.0 + np.bincount(node, weights=caused[workload] - 1.0, minlength=n)
    return np.asarray((others + own) / (jobs + 1), dtype=np.float64)


class _Holders(NamedTuple):
    """The GPUs of running jobs."""

    job: IntArray
    node: IntArray
    slot: IntArray
    workload: IntArray
    """(jobs,) position in ``known``; -1: application not known."""
    known: tuple[Workload, ...]


@by_identity
def _holders(running: tuple[RunningJob, ...]) -> _Holders:
    """Cached, because all decisions of a round share one tuple of running jobs."""
    flat: list[tuple[int, int, int]] = []
    known: dict[Workload, int] = {}
    workload = np.full(len(running), -1, dtype=np.int64)
    for number, job in enumerate(running):
        flat += [(number, node, slot) for node, slots in sorted(job.gpus) for slot in slots]
        if job.application is not None:
            gpus = sum(len(slots) for _, slots in job.gpus)
            workload[number] = known.setdefault((job.application, gpus), len(known))
    job_of, node_of, slot_of = np.array(flat, dtype=np.int64).reshape(-1, 3).T
    return _Holders(job_of, node_of, slot_of, workload, tuple(known))
