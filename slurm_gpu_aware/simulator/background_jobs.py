"""Background jobs of a history: they hold GPUs at their recorded times under every policy.

They started before the history begins, or still run when it ends. A job takes the recorded GPUs if
they are known and free, else free GPUs of the recorded nodes, else the lowest free GPUs of the
cluster. If too few are free, it takes the rest as soon as they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.trace import TraceJob

__all__ = ["BackgroundJobs"]


class BackgroundJobs:
    """Jobs that take and release GPUs of a cluster's state at given times."""

    def __init__(self, jobs: Iterable[TraceJob], state: ClusterState) -> None:
        self.state = state
        self._row = {name: i for i, name in enumerate(state.idle.nodes)}
        self._coming = sorted(jobs, key=_start, reverse=True)
        self._ends: list[tuple[float, int, TraceJob]] = []
        self._number = 0
        self._lacking: dict[str, tuple[TraceJob, int]] = {}
        """Job id -> job and the number of GPUs that it still has to take."""

    def next_time(self) -> float | None:
        """Time of the next start or end; None: there is none."""
        times = [_start(self._coming[-1])] if self._coming else []
        times += [self._ends[0][0]] if self._ends else []
        return min(times, default=None)

    def advance(self, now: float) -> bool:
        """Release and take the GPUs that are due by ``now``; return whether any became free."""
        freed = False
        while self._ends and self._ends[0][0] <= now:
            job = heapq.heappop(self._ends)[2]
            freed |= self.state.release(job.job_id)
            self._lacking.pop(job.job_id, None)
        while self._coming and _start(self._coming[-1]) <= now:
            job = self._coming.pop()
            end = _start(job) + (job.recorded_run_s or 0.0)
            if end > now:
                heapq.heappush(self._ends, (end, self._number, job))
                self._number += 1
                self._lacking[job.job_id] = (job, job.gpus)
        for job, lacking in list(self._lacking.values()):
            if not self.state.free:
                break
            self._take(job, lacking)
        return freed

    def _take(self, job: TraceJob, lacking: int) -> None:
        chosen: dict[tuple[int, int], None] = {}  # in order, each once
        for gpu in self._candidates(job):
            if len(chosen) == lacking:
                break
            chosen[gpu] = None
        slots: dict[int, tuple[int, ...]] = {}
        for node, slot in sorted(chosen):
            slots[node] = (*slots.get(node, ()), slot)
        end = _start(job) + job.time_limit_s
        self.state.hold(RunningJob(job.job_id, tuple(slots.items()), end, app_class=job.app_class))
        if len(chosen) == lacking:
            del self._lacking[job.job_id]
        else:
            self._lacking[job.job_id] = (job, lacking - len(chosen))

    def _candidates(self, job: TraceJob) -> Iterator[tuple[int, int]]:
        """Free (node, slot) in order of preference; some occur twice."""
        free = self.state.cluster.free
        nodes = [self._row[name] for name in job.recorded_nodes if name in self._row]
        if nodes:
            share = -(-job.gpus // len(job.recorded_nodes))
            recorded = [slot for slot in job.recorded_slots if slot < free.shape[1]]
            for node in nodes:
                there = [int(slot) for slot in free[node].nonzero()[0]]
                exact = [slot for slot in recorded if slot in there]
                rest = [slot for slot in there if slot not in exact]
                yield from ((node, slot) for slot in [*exact, *rest][:share])
        for node, slot in zip(*free.nonzero(), strict=True):
            yield int(node), int(slot)


def _start(job: TraceJob) -> float:
    return job.recorded_start_s or 0.0
