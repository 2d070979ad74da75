"""Mover of a simulation: what a round knows of moves, and the moves that began."""

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import replace
from zlib import crc32

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.moves.movable import MOVES, Movable, Moving
from slurm_gpu_aware.features.moves.settings import LOOK_S, RATE_S, MoveSettings
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.cluster_state import ClusterState
from slurm_gpu_aware.simulator.trace import TraceJob


class Mover:
    """What the rounds of a simulation know of moves."""

    def __init__(self, state: ClusterState, moves: MoveSettings, *, dated: bool = False) -> None:
        """``dated``: some jobs have due dates."""
        self.state, self.moves, self.dated = state, moves, dated
        self._recent: deque[tuple[float, str]] = deque()
        """(time, user) of the moves that began in the last hour."""
        self._looked = -math.inf

    def restart_s(self, job: TraceJob) -> float | None:
        """What a restart with more GPUs costs a job; None: it never grows while it runs."""
        return self.state.settings.restart_s(job) if job.elastic else None

    def moving(self, waiting: Collection[object]) -> Moving | None:
        """What this round knows of moves; None: none is possible, or it is the second of its time.

        ``waiting``: the jobs that wait.
        """
        now = self.state.clock.now
        if now == self._looked:
            return None
        self._looked = now
        while self._recent and now - self._recent[0][0] >= RATE_S:
            self._recent.popleft()
        full = len(self._recent) >= self.moves.per_hour
        some = self.state.free or (waiting and self._may_shrink())
        if not self.dated and (full or not some):
            return None
        movable = tuple(self._movable())
        return Moving(self.moves, movable, tuple(self._recent)) if movable else None

    def begin(self, plan: Plan) -> float:
        """Note the moves of a plan; return when to look again if no job arrives or ends before."""
        now = self.state.clock.now
        self._recent.extend((now, move.of.request.user) for move in plan.get(MOVES))
        # of the moves that use the same node only one begins
        return now + LOOK_S if plan.moved and self.dated else math.inf

    def _may_shrink(self) -> bool:
        """Whether a job runs on more GPUs than it needs."""
        wanted = self.moves.sticky and self.moves.shrink
        return wanted and any(
            one.job.elastic and one.size > one.request.sizes[0]
            for one in self.state.running.values()
            if one.request.sizes
        )

    def _movable(self) -> Iterator[Movable]:
        now, settings = self.state.clock.now, self.state.settings
        for active in self.state.running.values():
            if not _allows_moves(active.job, settings.movable_share):
                continue
            job = self.state.estimates.holder(active, now)
            request = self._dated(active)
            if request.sizes:
                request = request.resized(active.size)
                if not active.job.elastic:
                    request = replace(request, sizes=())
            yield Movable(request, job, settings.restart_s(active.job), active.moved_s)

    def _dated(self, active: ActiveJob) -> Request:
        """Its request with the work done before it got its GPUs, less that of its restart."""
        request, placed = active.request, active.placed
        if request.get(DUE_DATE) is None or placed is None:
            return request
        restart_s = 0.0 if active.last is None else self.state.settings.restart_s(active.job)
        done_s = active.done_before_s - restart_s / (placed.slowdown * active.stretch)
        return self.state.estimates.dated(active, request, done_s)


def _allows_moves(job: TraceJob, share: float) -> bool:
    """Whether a job allows moves; one that does not say, if it is of the share, in every run."""
    if job.elastic is not None:
        return job.elastic
    return crc32(job.job_id.encode()) < share * (1 << 32)
