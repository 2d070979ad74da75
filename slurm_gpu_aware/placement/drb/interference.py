"""Interference of jobs on one socket or machine (Amaral et al., SC'17, eq. 4).

Jobs interfere if they share a socket (section 5.2.2) or, by option, a machine (section 3.3). Eq. 4
is a mean of solo / co-located time, which falls with interference, but eqs. 1 and 2 treat I as a
cost. Here every quotient is inverted: co-located / solo, at least 1. I = 1 means no interference;
larger is worse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.model.arrays import IntArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.placement.identity_cache import by_identity
from slurm_gpu_aware.placement.masks import MaskArray
from slurm_gpu_aware.placement.policy import bad_option

SCOPES = ("socket", "machine")
"""What jobs share that interfere; an unknown socket is the machine."""

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


def check_options(interference: object, scope: object) -> None:
    """Raise ValueError if these options of a policy are no profile or None, or not of `SCOPES`."""
    if not isinstance(interference, InterferenceProfile | None):
        raise bad_option("interference", "an InterferenceProfile or None", interference)
    if scope not in SCOPES:
        raise bad_option("interference_scope", " or ".join(SCOPES), scope)


class Neighbours(NamedTuple):
    """Running jobs with GPUs on the same sockets of a machine, as one new job sees them."""

    sockets: int
    """GPUs of these sockets, as a mask."""
    jobs: int
    suffered: float
    """Sum of the slowdowns that the new job causes them."""
    caused: float
    """Sum of the slowdowns, each less 1, that they cause the new job."""


def interference(neighbours: tuple[Neighbours, ...], chosen: int) -> float:
    """I >= 1 of GPUs (a mask) of a machine beside its jobs.

    The mean of co-located / solo time over the new job and those that share a socket with it. The
    slowdowns of the new job by its neighbours add up.
    """
    jobs, total = 1, 1.0
    for there in neighbours:
        if there.sockets & chosen:
            jobs += there.jobs
            total += there.suffered + there.caused
    return total / jobs


def neighbours_on(
    profile: InterferenceProfile, job: Workload, cluster: Cluster, sockets: MaskArray
) -> tuple[IntArray, list[tuple[Neighbours, ...]]]:
    """(N,) number of each machine's neighbours for ``job``, and the distinct ones by number.

    A pair that was not measured, or an unknown application, counts as no interference.
    ``sockets``: (N, W) GPUs of the socket of each GPU, as masks.
    """
    n = cluster.shape[0]
    holders = _holders(cluster.running)
    held = ~cluster.free[holders.node, holders.slot]
    code = holders.job[held] * n + holders.node[held]  # ascending
    found: dict[tuple[tuple[int, int, float, float], ...], int] = {(): 0}
    number = np.zeros(n, dtype=np.int64)
    first = np.flatnonzero(np.diff(code, prepend=-1))
    if not len(first):
        return number, [()]
    zone = sockets[holders.node[held], holders.slot[held]]
    used = np.bitwise_or.reduceat(zone, first)
    node, workload = code[first] % n, holders.workload[code[first] // n]
    suffered = np.array([profile.slowdown(w, job) or 1.0 for w in holders.known] + [1.0])
    caused = np.array([(profile.slowdown(job, w) or 1.0) - 1.0 for w in holders.known] + [0.0])
    order = np.lexsort((used, node))
    node, used, workload = node[order], used[order], workload[order]
    of_node = np.flatnonzero(np.diff(node, prepend=-1))
    first = np.union1d(of_node, np.flatnonzero(np.diff(used, prepend=used[:1])))
    each = list(
        zip(
            used[first].tolist(),
            np.diff(first, append=len(node)).tolist(),
            np.add.reduceat(suffered[workload], first).round(9).tolist(),
            np.add.reduceat(caused[workload], first).round(9).tolist(),
            strict=True,
        )
    )
    ends = [*np.searchsorted(first, of_node).tolist(), len(each)]
    number[node[of_node]] = [
        found.setdefault(tuple(each[begin:end]), len(found)) for begin, end in pairwise(ends)
    ]
    return number, [tuple(map(Neighbours._make, there)) for there in found]


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
