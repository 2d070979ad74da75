"""Moves of a simulation: the running jobs that allow them, and the planner's moves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

from slurm_gpu_aware.features.due_dates.queue import accounted, next_growth
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.moves.planning import plan_moves
from slurm_gpu_aware.features.moves.settings import RATE_S, MoveSettings
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.rounds import Rounds
from slurm_gpu_aware.simulator.trace import TraceJob

_LOOK_S = 30.0
"""Pause between two looks of the selector for moves."""


class Moving:
    """Plans the moves that precede the starts of a round."""

    def __init__(self, rounds: Rounds, moves: MoveSettings, *, dated: bool = False) -> None:
        """``dated``: some jobs have due dates."""
        self.rounds, self.moves, self.dated = rounds, moves, dated
        self.state, self.settings = rounds.state, rounds.settings
        self._recent: deque[tuple[float, str]] = deque()
        """(time, user) of the moves that began in the last hour."""
        self.wake_s = math.inf
        """When a job should grow by its due date, as far as is known; inf: none should."""

    def restart_s(self, job: TraceJob) -> float | None:
        """What a restart with more GPUs costs a job; None: it never grows while it runs."""
        return self.settings.restart_s(job) if job.elastic else None

    def plan(self) -> list[tuple[ActiveJob, Assignment]]:
        """Running jobs and their new GPUs."""
        now = self.state.clock.now
        while self._recent and now - self._recent[0][0] >= RATE_S:
            self._recent.popleft()
        self.wake_s = math.inf
        full = len(self._recent) >= self.moves.per_hour
        if full and not self.dated:
            return []
        if not (self.state.free or self.dated or self._may_shrink()):
            return []
        movable = list(self._movable())
        if not movable:
            return []
        if self.dated:
            movable = accounted(movable, self.state.idle, now)
            self.wake_s = next_growth(movable, now)
        if full:
            return []
        found = plan_moves(
            movable,
            self.rounds.in_turn(),
            self.state.view(None, with_holders=True),
            self.rounds.plan_settings,
            self.moves,
            now,
            recent=self._recent,
            policy_options={self.settings.policy: self.settings.policy_options},
            power=self.rounds.power_state(None),
        )
        self._recent.extend((now, move.request.user) for move in found)
        if found and self.dated:  # of the moves that use the same node only one begins
            self.wake_s = min(self.wake_s, now + _LOOK_S)
        by_id = {active.job.job_id: active for active in self.state.running.values()}
        return [(by_id[move.job_id], move.assignment) for move in found]

    def _may_shrink(self) -> bool:
        """Whether jobs wait while one runs on more GPUs than it needs."""
        running = self.state.running.values()
        wanted = self.moves.sticky and self.moves.shrink and bool(self.rounds.waiting)
        return wanted and any(
            one.job.elastic and one.size > one.request.sizes[0]
            for one in running
            if one.request.sizes
        )

    def _movable(self) -> Iterator[Movable]:
        now, share = self.state.clock.now, self.settings.movable_share
        for active in self.state.running.values():
            if not _allows_moves(active.job, share):
                continue
            job = self.state.estimates.holder(active, now)
            request = self._dated(active)
            if request.sizes:
                request = request.resized(active.size)
                if not active.job.elastic:
                    request = replace(request, sizes=())
            restart_s = self.settings.restart_s(active.job)
            yield Movable(request, job, restart_s, active.moved_s)

    def _dated(self, active: ActiveJob) -> Request:
        """Its request with the work done before it got its GPUs, less that of its restart."""
        request, placed = active.request, active.placed
        if request.due is None or placed is None:
            return request
        restart_s = 0.0 if active.last is None else self.settings.restart_s(active.job)
        done_s = active.done_before_s - restart_s / (placed.slowdown * active.stretch)
        return self.state.estimates.dated(active, request, done_s)


def _allows_moves(job: TraceJob, share: float) -> bool:
    """Whether a job allows moves; one that does not say, if it is of the share, in every run."""
    if job.elastic is not None:
        return job.elastic
    return crc32(job.job_id.encode()) < share * (1 << 32)
