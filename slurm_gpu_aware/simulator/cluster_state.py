"""State of the simulated cluster: the jobs on its GPUs and their pace.

The cost of an event is independent of the number of nodes and of waiting jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.clock import EventClock
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.settings import SimSettings

__all__ = ["ClusterState"]


class ClusterState:
    """The cluster and the jobs on it."""

    def __init__(
        self, idle: Cluster, settings: SimSettings, physics: Physics, clock: EventClock
    ) -> None:
        self.idle = idle
        self.cluster = idle.copy()
        self.settings = settings
        self.physics = physics
        self.clock = clock
        self.running: dict[int, ActiveJob] = {}
        """Position in the trace -> job."""
        self.total = int(idle.exists.sum())
        self.partly = 0
        """Free GPUs on nodes that are partly used."""
        self._capacity: list[int] = idle.exists.sum(axis=1).tolist()
        self._free_on: list[int] = self.cluster.free.sum(axis=1).tolist()
        self.free: int = sum(self._free_on)
        self._on_node: dict[int, set[int]] = {}
        """Node -> positions of the jobs on it; maintained with interference only."""
        self.background: dict[str, list[RunningJob]] = {}
        """Id of a background job -> GPUs that it holds."""
        self.background_gpus = 0
        self.interferes = settings.interference is not None

    @property
    def used(self) -> int:
        """GPUs in use."""
        return self.total - self.free

    def enter(self, active: ActiveJob, assignment: Assignment, cost_s: float) -> None:
        """Put a job on GPUs; it makes progress after ``cost_s``."""
        now = self.clock.now
        for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
            self.cluster.take(node, slots)
            self._free_changed(node, -len(slots))
        self.running[active.position] = active
        active.placed, active.placed_s = assignment, now
        active.since_s, active.resume_s = now, now + cost_s
        active.alone = self.physics.slowdown(active.job, assignment)
        if self.interferes:
            self._neighbours_changed(active, gone=False)
        else:
            self._set_pace(active)
        if self.settings.order == "las":
            left = self.settings.las_threshold_gpu_s - active.service_gpu_s
            if left > 0:
                self.clock.expect_crossing(now + left / active.job.gpus, active)

    def leave(self, active: ActiveJob) -> None:
        """Take a job off its GPUs."""
        active.credit(self.clock.now)
        for node, slots in active.where():
            self.cluster.give_back(node, slots)
            self._free_changed(node, len(slots))
        active.version += 1
        del self.running[active.position]
        if self.interferes:
            self._neighbours_changed(active, gone=True)
        active.last, active.placed, active.holder = active.placed, None, None

    def hold(self, job: RunningJob) -> None:
        """Give a background job free GPUs in addition to those that it holds."""
        for node, slots in job.gpus:
            self.cluster.take(node, slots)
            self._free_changed(node, -len(slots))
            self.background_gpus += len(slots)
        self.background.setdefault(job.job_id, []).append(job)

    def release(self, job_id: str) -> bool:
        """Free all GPUs of a background job; return whether it held any."""
        parts = self.background.pop(job_id, [])
        for node, slots in (own for part in parts for own in part.gpus):
            self.cluster.give_back(node, slots)
            self._free_changed(node, len(slots))
            self.background_gpus -= len(slots)
        return bool(parts)

    def view(self, keep: set[int] | None, *, with_holders: bool) -> Cluster:
        """The cluster as the planner sees it: the running jobs in ``keep`` (None: all) and the
        background jobs hold their GPUs. ``with_holders``: list these jobs in ``running``."""
        held = [part for parts in self.background.values() for part in parts]
        if keep is None or len(keep) == len(self.running):
            view, keep = self.cluster, None
        else:
            view = self.idle.copy()
            for node, slots in (own for part in held for own in part.gpus):
                view.take(node, slots)
            for position in keep:
                for node, slots in self.running[position].where():
                    view.take(node, slots)
        if not with_holders:
            return view
        shown: Iterable[int] = self.running if keep is None else keep
        holders = tuple(self.running[p].as_holder() for p in sorted(shown))
        return replace(view, running=(*holders, *held))

    def _free_changed(self, node: int, by: int) -> None:
        """Update the counts of free GPUs."""
        for sign in (-1, 1):
            free = self._free_on[node]
            if free < self._capacity[node]:
                self.partly += sign * free
            if sign < 0:
                self._free_on[node] = free + by
        self.free += by

    def _neighbours_changed(self, active: ActiveJob, *, gone: bool) -> None:
        """Set the pace of every job on the nodes of a job that enters or leaves."""
        affected: set[int] = set()
        for node, _ in active.where():
            there = self._on_node.setdefault(node, set())
            there.discard(active.position) if gone else there.add(active.position)
            affected |= there
        for position in sorted(affected):
            self._set_pace(self.running[position])

    def _set_pace(self, active: ActiveJob) -> None:
        """Set slowdown and end of a running job."""
        pace = active.alone
        if self.interferes:
            beside: set[int] = set()
            for node, _ in active.where():
                beside |= self._on_node.get(node, set())
            beside.discard(active.position)
            others = [self.running[position].job for position in sorted(beside)]
            pace *= self.physics.interference(active.job, others)
        self.clock.expect_end(active.end_at_pace(pace, self.clock.now), active)
