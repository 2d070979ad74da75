"""Moves of a simulation: the running jobs that allow them, and the planner's moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.move_settings import RATE_S, MoveSettings
from slurm_gpu_aware.planning.moves import Movable, plan_moves
from slurm_gpu_aware.simulator.active import ActiveJob
from slurm_gpu_aware.simulator.rounds import Rounds

__all__ = ["Moving"]


class Moving:
    """Plans the moves that precede the starts of a round."""

    def __init__(self, rounds: Rounds, moves: MoveSettings) -> None:
        self.rounds, self.moves = rounds, moves
        self.state, self.settings = rounds.state, rounds.settings
        self._recent: deque[float] = deque()

    def plan(self) -> list[tuple[ActiveJob, Assignment]]:
        """Running jobs and their new GPUs."""
        now = self.state.clock.now
        while self._recent and now - self._recent[0] >= RATE_S:
            self._recent.popleft()
        if len(self._recent) >= self.moves.per_hour or not self.state.free:
            return []
        movable = list(self._movable())
        if not movable:
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
        )
        self._recent.extend(now for _ in found)
        by_id = {active.job.job_id: active for active in self.state.running.values()}
        return [(by_id[move.job_id], move.assignment) for move in found]

    def _movable(self) -> Iterator[Movable]:
        now, share = self.state.clock.now, self.settings.movable_share
        for active in self.state.running.values():
            if now - active.placed_s < self.moves.first_s or not _drawn(active, share):
                continue
            job = self.state.estimates.holder(active, now)
            request = active.request
            if request.sizes:
                request = request.resized(active.size)
                if not active.job.elastic or self.rounds.limited:  # as live
                    request = replace(request, sizes=())
            yield Movable(request, job, self.settings.migration_s, active.moved_s)


def _drawn(active: ActiveJob, share: float) -> bool:
    """Whether a job is one of the share that allows moves; the same in every run."""
    return crc32(active.job.job_id.encode()) < share * (1 << 32)
